"""The parts of `device.thin_worker`, which serves a llama-server to a hub. They need grpcio, protobuf and the standard library, no more."""
