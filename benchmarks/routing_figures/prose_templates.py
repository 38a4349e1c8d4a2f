"""Ways in which models write an answer into prose, to be found again by the extraction.

They were written before the extraction. Every third one is held out: it is only ever reported on.

In a template, `<answer>` is the answer as recorded, `<grouped>` with separators between thousands, `<latex>` in LaTeX, `<json>` as a
string in JSON, `<long>` and `<short>` with the task's unit, `<decimal>` with closing zeros; `<a>` to `<d>` are numbers that lead astray.
`<subject>` names the thing asked for.
"""

from typing import Final

WORKED: Final = (
    "We start from the given condition. Substituting gives <a> + <b> = <c>, and simplifying further leaves <d>.\n\n"
    "Therefore, the answer is $\\boxed{<latex>}$.",
    "**Step 1:** Write down what is known: <a> and <b>.\n**Step 2:** Combine them to get <c>.\n**Step 3:** Solve for <subject>.\n\n"
    "**Answer:** <answer>",
    "Let me think step by step.\n\n1. First we note that <a> * <b> = <c>.\n2. Then we subtract <d>.\n3. That leaves us with <long>.\n\n"
    "So <subject> is <long>.",
    "First, consider the case with <a>. It gives <b>, which is impossible. The other case gives <c>.\n\nFinal answer: <grouped>",
    "Using the formula with x = <a> and y = <b>:\n\n\\[ <a> - <b> = <c> \\]\n\nHence \\[ \\boxed{<latex>} \\] is what we were looking for.",
    "To solve this, I checked the values <a>, <b> and <c> one after another; only the last of them satisfies both conditions, and with it "
    "<subject> comes to **<answer>**.",
    "Sure! Here is my solution.\n\n- There are <a> ways to start.\n- Each one has <b> continuations, which makes <c>.\n- We have counted "
    "<d> of them twice.\n\nThe final answer is <answer>. I hope it is correct.",
    "The total is built from <a> and <b>.\n\nTotal: <a> + <b> + <c> = <short>",
    "## Solution\n\nSet the two expressions equal and collect terms (<a>, then <b>).\n\n## Answer\n\n<answer>",
    "We can rewrite the problem as an equation in one unknown. With <a> on the left and <b> on the right, dividing by <c> yields "
    "<subject> = <answer>.",
    "<answer>\n\nExplanation: the first part contributes <a>, the second one <b>; after correcting by <c>, the value above remains.",
    "By symmetry, we may assume the first number is at most <a>. There are <b> such cases, and <c> of them fail.\n\n"
    "Thus, the correct answer is:\n\n$$<latex>$$",
    "Zuerst setzen wir <a> ein und erhalten <b>. Danach ziehen wir <c> ab.\n\nAntwort: <answer>",
    "I computed <subject> in two ways. The first one gave <a> before rounding, the second one <b>. Both lead to the same result in the "
    "end: <subject> equals <decimal>.",
    "Ok, the quick way: <a> minus <b> is <c>, halve it, done. That makes <long>.",
    "Calculons d'abord <a> puis <b>, ce qui donne <c>.\n\nLa réponse est donc <answer>.",
    "Given the constraints, we try <a> (too large) and <b> (too small).\n\nANSWER: <long>\n\nLet me know if you would like more detail on "
    "the <c> cases I left out!",
    "Plugging in, <a>/<b> reduces, and the sum telescopes to <c> terms.\n\n$$\\text{Result} = <latex>$$\n",
    "We need <subject>. Note that <a> < <b>, so the bound of <c> is never reached.\n\n> **The answer is <answer>.**",
    "From the second condition we know that <a> divides the product, so we look for multiples up to <b>. After checking all <c> "
    "candidates, we conclude that <subject> must be <answer>.",
    "Primero calculamos <a> y luego restamos <b>.\n\nRespuesta final: **<answer>**",
    "The value can be read off directly.\n\n```\n<a> -> <b>\n<b> -> <c>\n```\n\nHence we get <short> in the end.",
    "My reasoning:\n(i) <a> is even,\n(ii) <b> is odd,\n(iii) so their product <c> is even.\n\nConclusion: the result is $<latex>$.",
    "There might be a neater way, but counting works: <a>, <b>, <c>, <d>, ...\n\n**Final Answer**\n\n"
    "The final answer is $\\boxed{<latex>}$",
    "Let n be the unknown. Then n + <a> = <b> would need n to be negative, while n * <a> = <c> works.\n\n"
    "Therefore \\( n = <latex> \\), as required.",
    "Step 1 - rearrange: <a> = <b> + x\nStep 2 - square both sides: <c>\nStep 3 - discard the extra root <d>\n\nAnswer = <answer>",
    "It helps to draw a picture: the short side is <a>, the long side <b>. Working it out, you end up with **<long>** in total.",
    "Combining everything, we have <a> from the first group plus <b> from the second, less <c> for the overlap, i.e. <grouped> altogether.",
    '{"reasoning": "with <a> and <b> the equation has the root <c>", "answer": "<answer>"}',
    "We conclude:\n\n$\\boxed{\\text{<answer>}}$\n\nCheck: replacing it in the first line gives <a> = <a>, and in the second <b> = <b>.",
    "After <a> iterations the pattern repeats with period <b>, so only the remainder <c> matters. The answer to the question is thus "
    "<answer>, not <d>.",
    "*Work:* <a> x <b> = <c>\n\n*Answer:* **<grouped>**",
    "Wir rechnen <a> · <b> = <c> und kürzen.\n\nDie Antwort lautet <answer>.",
    "Our candidates are <a>, <b> and <c>; the first two violate the condition.\n\nI'm confident that <subject> is **<answer>**. "
    "Do you want me to verify it in another way?",
    "The polynomial factors, its roots are <a> and <b>, and their difference squared is <c>.\nSo, <subject>: <answer>",
    "In short: multiply <a> by <b>, take away <c>.\n\n<answer>",
)
"""Solutions of mathematics."""

TRACED: Final = (
    "The loop runs <a> times, and the counter ends at <b>.\n\n```python\n<answer>\n```",
    "Let's trace the code.\n\n1. The first call has the value <a>.\n2. The branch with <b> is not taken.\n\nAnswer: <answer>",
    "Going through it by hand: i = <a>, then i = <b>, then the loop stops.\n\nSo the completed assertion is:\n\n"
    "```python\nassert f(x) == <answer>\n```",
    "The function first looks at index <a>, skips <b>, and then returns `<answer>`.",
    "**Trace**\n\n- start: <a>\n- after the loop: <b>\n\n**Output:** `<answer>`",
    "Step 1: the list has <a> entries.\nStep 2: <b> of them pass the test.\n\nTherefore, the output of the function is <answer>",
    "With the given input the condition `len(s) > <a>` holds, so line <b> runs.\n\nThe final answer is `<answer>`.",
    "The answer is:\n\n```\n<answer>\n```\n\nbecause the dictionary is visited <a> times and <b> keys are dropped.",
    '{"reasoning": "after <a> steps the loop ends at <b>", "answer": <json>}',
    "Position <a> holds the pivot; everything after position <b> is cut off.\n\nResult: <answer>",
    "First <a> is pushed, then <b> is popped.\n\nHence f(x) == <answer>",
    "After <a> passes nothing changes any more (I checked up to <b>).\n\n### Final answer\n\n<answer>",
    "The variable starts at <a> and is overwritten by <b>. What is returned in the end is **<answer>**.",
    "Erst wird <a> angehängt, dann <b> entfernt.\n\nDie Ausgabe ist: <answer>",
    "To complete the assertion, note that `range(<a>)` has <a> entries and <b> survive.\n\n[ANSWER]\n<answer>\n[/ANSWER]",
    "I stepped through all <a> iterations. On iteration <b> the condition fails, and the value at this point is\n\n<answer>",
    "`<answer>`\n\nThis is since the slice starts at <a> and stops before <b>.",
    "Since <a> is never equal to <b>, the else branch decides, and the function returns <answer>.",
)
"""Predictions of what a function returns."""

BROKEN_OFF: Final = (
    "We begin with <a> and <b>, from which it follows that we may assume <c> without loss of generality. Next, consider the case in which",
    "Let me try again. Trying <a> leads to a contradiction, trying <b> as well, so let us go back to the second equation and see whether",
    "1. Start with <a>.\n2. Add <b> to both sides.\n3. Add <b> to both sides.\n4. Add <b> to both sides.\n5. Add <b> to",
)
"""Outputs that ran into the limit of their length before they came to an answer."""

SUBJECTS: Final = ("the value", "the sum", "the number of ways", "the area", "the largest possible value", "the length", "the probability")
UNITS: Final = (("km", "kilometers"), ("kg", "kilograms"), ("h", "hours"), ("cm", "centimeters"), ("USD", "dollars"), ("min", "minutes"))
"""Short and long."""


def is_held_out(number: int) -> bool:
    """Return True for a template that the extraction was not developed on."""
    return number % 3 == 2
