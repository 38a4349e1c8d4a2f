"""The parts of `minions` that call nobody: chunks, jobs, findings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nearfar.orchestrator.strategies.minions import ChunkAnswer, cut_into_chunks, occurs, read_assessment, read_finding, read_jobs, show
from nearfar.orchestrator.strategies.prompts import Job
from nearfar.orchestrator.task.policy import MinionsConfig
from nearfar.protocols import InvalidOutput

TEXTS = st.text(alphabet=st.sampled_from("abc .\n。é"), max_size=400)
CHUNK = "The tower was built in 1871. It is 40 m high."
JOBS = [Job(instruction="When was it built?"), Job(instruction="How high is it?")]


@given(text=TEXTS, characters=st.integers(1, 60), data=st.data())
def test_chunks_cover_the_text_and_repeat_only_the_overlap(text: str, characters: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, characters // 2 if characters > 1 else 0))
    chunks = cut_into_chunks(text, characters=characters, overlap=overlap)
    assert all(0 < len(chunk) <= characters for chunk in chunks)
    assert "".join(chunk if index == 0 else chunk[overlap:] for index, chunk in enumerate(chunks)) == text
    for before, after in zip(chunks, chunks[1:], strict=False):
        assert len(after) > overlap
        assert before.endswith(after[:overlap])


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One two.\n\nThree. four\nfive six seven", "One two.\n\n"),
        ("One two three.\nFour. five six seven", "One two three.\n"),
        ("One two three. Four five six seven", "One two three. "),
        ("one two three four five six seven", "one two three four "),
        ("onetwothreefourfivesixseven", "onetwothreefourfives"),
    ],
)
def test_a_chunk_ends_at_the_best_border_of_its_second_half(text: str, first: str) -> None:
    assert cut_into_chunks(text, characters=16 if "\n\n" in text else 20, overlap=0)[0] == first


def test_an_overlap_beyond_half_a_chunk_is_refused() -> None:
    with pytest.raises(ValidationError):
        MinionsConfig(chunk_characters=100, overlap_characters=51)


@pytest.mark.parametrize("wrapping", ["{}", "Here you are:\n```json\n{}\n```", "{} That is all."])
def test_jobs_are_read_with_or_without_words_around_them(wrapping: str) -> None:
    reply = json.dumps({"jobs": [{"instruction": job.instruction, "advice": ""} for job in JOBS]})
    assert read_jobs(wrapping.replace("{}", reply)) == tuple(JOBS)


def test_equal_jobs_and_jobs_that_ask_nothing_are_left_out() -> None:
    asked = [{"instruction": "Sum?", "advice": ""}, {"instruction": " ", "advice": "hurry"}, {"instruction": "Sum?", "advice": ""}]
    assert read_jobs(json.dumps({"jobs": asked})) == (Job(instruction="Sum?"),)


@pytest.mark.parametrize(
    "reply", ["", "no", "[]", "{}", '{"jobs": []}', '{"jobs": ["sum"]}', '{"jobs": [{"instruction": 1, "advice": ""}]}']
)
def test_a_reply_without_jobs_is_invalid(reply: str) -> None:
    with pytest.raises(InvalidOutput):
        read_jobs(reply)


@given(st.text())
def test_any_reply_is_read_or_invalid(reply: str) -> None:
    for read in (read_jobs, lambda text: read_assessment(text, is_last=False, output_schema=None), lambda text: read_finding(text, CHUNK)):
        with pytest.raises(InvalidOutput):
            read(reply)


def finding(answer: str | None, citation: str | None) -> str:
    return json.dumps({"explanation": "It says so.", "citation": citation, "answer": answer})


@pytest.mark.parametrize("citation", ["built in 1871", '"Built  in\n1871"', "“The tower was built in 1871.”"])
def test_a_finding_with_a_true_citation_survives(citation: str) -> None:
    found = read_finding(finding("1871", citation), CHUNK)
    assert found is not None
    assert found.answer == "1871"


@pytest.mark.parametrize(
    ("answer", "citation"),
    [
        (None, None),
        (None, "built in 1871"),
        ("none", "built in 1871"),
        (" ", "built in 1871"),
        ("1871", None),
        ("1871", "''"),
        ("1871", "was torn down"),
    ],
)
def test_an_abstention_or_a_false_citation_does_not(answer: str | None, citation: str | None) -> None:
    assert read_finding(finding(answer, citation), CHUNK) is None


@given(st.text(min_size=1), st.integers(0, 20), st.integers(1, 20))
def test_words_of_a_chunk_occur_in_it(chunk: str, start: int, length: int) -> None:
    citation = chunk[start : start + length]
    assert occurs(citation, chunk) == bool(citation.strip("\"'“”‘’«» ").strip())


def findings(count: int) -> dict[tuple[int, int], ChunkAnswer]:
    return {(job, chunk): ChunkAnswer(explanation="e", citation="c", answer=f"a{job}{chunk}") for job in range(2) for chunk in range(count)}


def test_findings_are_shown_by_job_then_by_chunk() -> None:
    found = dict(reversed(findings(2).items()))
    shown = show(JOBS, found, characters=1000)
    assert shown.splitlines() == [
        "Job 1: When was it built?",
        '- chunk 1: a00 ("c"; e)',
        '- chunk 2: a01 ("c"; e)',
        "Job 2: How high is it?",
        '- chunk 1: a10 ("c"; e)',
        '- chunk 2: a11 ("c"; e)',
    ]


def test_a_job_without_findings_says_so() -> None:
    assert show(JOBS[:1], {}, characters=1000).splitlines() == ["Job 1: When was it built?", "- nothing was found"]


@given(st.integers(1, 30), st.integers(1, 900))
def test_what_does_not_fit_is_left_out_and_counted(count: int, characters: int) -> None:
    lines = show(JOBS, findings(count), characters=characters).splitlines()
    shown = [line for line in lines if line.startswith("- chunk")]
    left_out = [int(line.split()[1]) for line in lines if line.endswith("left out")]
    assert len(shown) + sum(left_out) == 2 * count
    assert sum(map(len, shown)) <= characters


def test_an_answer_ends_the_rounds_and_no_answer_asks_for_more() -> None:
    more = {"answer": None, "scratchpad": "1871 so far", "jobs": [{"instruction": "Sum?", "advice": ""}]}
    assert read_assessment(json.dumps({**more, "answer": "1871"}), is_last=False, output_schema=None).answer == "1871"
    asked = read_assessment(json.dumps(more), is_last=False, output_schema=None)
    assert (asked.answer, asked.scratchpad, asked.jobs) == (None, "1871 so far", (Job(instruction="Sum?"),))


@pytest.mark.parametrize(
    ("reply", "is_last"),
    [
        ({"answer": None, "scratchpad": "", "jobs": []}, False),
        ({"answer": " ", "scratchpad": "", "jobs": []}, False),
        ({"answer": None, "scratchpad": "", "jobs": [{"instruction": "Sum?", "advice": ""}]}, True),
        ({"scratchpad": "", "jobs": []}, False),
    ],
)
def test_a_reply_that_leads_nowhere_is_invalid(reply: dict[str, object], is_last: bool) -> None:
    with pytest.raises(InvalidOutput):
        read_assessment(json.dumps(reply), is_last=is_last, output_schema=None)


def test_an_answer_has_to_match_the_tasks_schema() -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    good = {"answer": '{"year": 1871}', "scratchpad": "", "jobs": []}
    assert read_assessment(json.dumps(good), is_last=True, output_schema=schema).answer == '{"year": 1871}'
    with pytest.raises(InvalidOutput):
        read_assessment(json.dumps({**good, "answer": "1871"}), is_last=True, output_schema=schema)
