"""What a policy could learn to write for a reward that it did not earn, and what looks like it and is right."""

import pytest

GOLDS = [
    "42",
    "0",
    r"\frac{\sqrt3}{2}",
    "x^2+1",
    "x=5",
    r"50\%",
    r"5\text{ cm}",
    "3:4",
    "1,2",
    "(1,2)",
    "y=2x+3",
    "x>5",
    "A",
]
UNIVERSAL = [
    r"10^{99}-10^{99}+\sqrt{2}",
    r"10^{500}-10^{500}+\sqrt{2}",
    r"x^{1152921504606846975}",
    r"x+2305843009213693951-x",
    r"\infty",
    r"0/0",
    "x=x",
    r"\text{answer}",
    r"9^{9^{9^9}}",
    ",".join(map(str, range(100))),
    r"\emptyset",
    r"\int_0^1 x dx",
]


@pytest.mark.parametrize("answer", UNIVERSAL)
def test_no_answer_is_right_for_everything(judge, answer):
    assert [gold for gold in GOLDS if judge(gold, f"\\boxed{{{answer}}}").score != 0.0] == []


WRONG = [
    ("42", r"\boxed{6 7}"),
    ("42", r"\boxed{4 2}"),
    ("2025", r"\boxed{45\;45}"),
    ("42", r"\boxed{42 thousand}"),
    ("42", r"\boxed{42\text{ is wrong}}"),
    ("42", r"\boxed{42 \text{ minus one}}"),
    ("9", r"\boxed{9\text{ if lucky else }10}"),
    ("36", r"\boxed{36\text{ because }35}"),
    ("36", r"\boxed{36\text{ where }36=35}"),
    ("42", "The answer is not 42."),
    ("42", "The answer is less than 42."),
    ("42", "The answer isn't 42."),
    ("42", "I do not think the answer is 42."),
    ("0", r"\boxed{42} The answer is an integer from 0 to 999."),
    ("1", r"\boxed{42} This answer is consistent with part 1."),
    ("42", r"The answer is either 42 or 43."),
    ("e - 1", r"\boxed{e - 2}"),
    ("a:b", r"\boxed{a:c}"),
    ("(a) 5, (b) 6", r"\boxed{(a) 7, (b) 9}"),
    ("B", r"\boxed{A \text{ or } B}"),
    ("B", r"\boxed{A/B}"),
    ("B", r"\boxed{\text{Not B}}"),
    ("B", "The answer is not B."),
    ("B", "The answer is A or B."),
    ("D", "The answer is C, possibly D."),
    (r"\sqrt2", r"\boxed{\sqrt{2} \text{ hmm } \sqrt{3}}"),
    (r"\frac12", r"\boxed{\frac12 \text{ or perhaps } \frac13}"),
    ("x>2 and x<5", r"\boxed{x>2 \lor x<5}"),
    ("x<2 or x>5", r"\boxed{x<2 \land x>5}"),
    ("|x+5|", r"\boxed{x+5}"),
    ("|x-50|", r"\boxed{50-x}"),
    ("|mn|", r"\boxed{mn}"),
    (r"\sqrt{x^2}", r"\boxed{x}"),
    (r"\lfloor x\rfloor", r"\boxed{\lceil x\rceil-1}"),
    ("2|x+1|>4", r"\boxed{x>1}"),
    ("kx", r"\boxed{cx}"),
    ("c^2", r"\boxed{k^2}"),
    ("x^3+C", r"\boxed{x^3}"),
    ("x", r"\boxed{x+2305843009213693951}"),
    ("[3,4]", r"\boxed{3.4}"),
    ("(1,2)", r"\boxed{1.2}"),
    ("(1,2)", r"\boxed{y=1, x=2}"),
    (r"\emptyset", r"\boxed{\{\emptyset\}}"),
    (r"\{1,2\}", r"\boxed{\{\{1,2\}\}}"),
    (r"\{2k \mid k\in\mathbb Z\}", r"\boxed{\mathbb Z}"),
    ("10^{50}", r"\boxed{10^{50}+1}"),
    (r"10^{-80}\sqrt{2}", r"\boxed{0}"),
    ("25^\\circ C", r"\boxed{25^\circ F}"),
    ("1,234", r"\boxed{(1,234)}"),
    ("5m", r"\boxed{5}"),
]


@pytest.mark.parametrize(("gold", "completion"), WRONG)
def test_wrong(judge, gold, completion):
    assert judge(gold, completion).score in (0.0, None)


RIGHT = [
    ("0", r"\boxed{\sin\pi}"),
    ("0", r"\boxed{\cos\frac{\pi}{2}}"),
    (r"10^{40}\sqrt{2}", r"\boxed{\sqrt{2\cdot 10^{80}}}"),
    (r"\sqrt{10^{40}+1}-10^{20}", r"\boxed{\frac{1}{\sqrt{10^{40}+1}+10^{20}}}"),
    ("(1,\\infty)", r"\boxed{]1,\infty[}"),
    ("[0,1)", r"\boxed{[0,1[}"),
    ("42", r"\boxed{\color{red}{42}}"),
    ("42", r"\boxed{\text{forty-two}}"),
    (r"\emptyset", r"\boxed{\text{no solution}}"),
    (r"\mathbb{R}", r"\boxed{\text{all real numbers}}"),
    (r"x=\frac{\pi}{2}+\pi k", r"\boxed{x=\frac{\pi}{2}+n\pi, n\in\mathbb{Z}}"),
    ("f(x)=x^2", r"\boxed{f(t)=t^2}"),
    (r"\overline{z}+1", r"\boxed{1+\bar{z}}"),
    (r"\frac{dy}{dx}=2x", r"\boxed{dy/dx = 2x}"),
    ("24", r"\boxed{\Gamma(5)}"),
    ("10", r"\boxed{C(5,2)}"),
    ("255", r"\boxed{FF_{16}}"),
    ("90", r"\boxed{90^o}"),
    (r"5\text{ ft }6\text{ in}", r"\boxed{66\text{ in}}"),
    ("3 hours 20 minutes", r"\boxed{200 \text{ minutes}}"),
    ("5 million", r"\boxed{5000000}"),
    ("> 5", r"\boxed{x>5}"),
    (r"\angle ABC = 60^\circ", r"\boxed{60}"),
    (r"\ln(x+1)", r"\boxed{\log(x+1)}"),
    (r"\int_0^1 x\,dx", r"\boxed{1/2}"),
    (r"\int_0^1 x\,dx", r"\boxed{0.5}"),
    (r"\sum_{k=1}^{3} k", r"\boxed{6}"),
    (r"\lim_{x\to0}\frac{\sin x}{x}", r"\boxed{1}"),
    ("1/3", r"$\int_0^1 x^2\,dx = \left[\frac{x^3}{3}\right]_0^1 = \frac13$"),
    (r"\text{Alice: } 3, \text{Bob: } 4", r"\boxed{\text{Alice: } 3, \text{Bob: } 4}"),
    (
        r"\begin{cases}x&x>0\\0&x\le0\end{cases}",
        r"\boxed{\begin{cases}x&\text{if } x>0\\0&\text{if } x\le0\end{cases}}",
    ),
    ("B", r"It can't be A or C, so the answer is \boxed{B}."),
    ("D", "The answer is for sure D, it can't be A or B"),
    ("42", "It is not 41, so the answer is 42."),
    ("2e+1", r"\boxed{1+2e}"),
    ("1e-7", r"\boxed{0.0000001}"),
    ("1.5e+3", r"\boxed{1500}"),
]


@pytest.mark.parametrize(("gold", "completion"), RIGHT)
def test_right(judge, gold, completion):
    assert judge(gold, completion).score == 1.0


@pytest.mark.parametrize("answer", [r"3 \pmod{1e5000}", r"3 \pmod{10^{5000}}", r"x_{10^{5000}}"])
def test_numbers_that_python_does_not_write(judge, answer):
    assert judge("42", f"\\boxed{{{answer}}}").score == 0.0
    assert judge(answer, r"\boxed{42}").state in ("ok", "unknown")


def test_targets_that_are_no_finite_number(judge):
    for target in (10**5000, float("nan"), float("inf")):
        assert judge(target, r"\boxed{1}").state == "unknown"
