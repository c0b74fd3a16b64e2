"""Closed classes of English words, and abbreviations that a full stop belongs to."""

from __future__ import annotations

TITLES = frozenset(
    """
    mr mrs ms dr prof st messrs rev gen sen rep capt cpt col lt maj sgt gov hon mme mlle vs cf viz
    """.split()  # noqa: SIM905
)
"""Before a name or another word, so that their full stop never ends a sentence."""

ABBREVIATIONS = frozenset(
    """
    adm approx apr aug ave bros ca co corp dec dept eds eg esp est etc feb fri govt ie inc jan jr ltd mfg min misc
    nos nov oct pp ph.d pt rd resp sec sep sept sr st thu tues univ vol vols wed yr yrs
    """.split()  # noqa: SIM905
)
"""Before a small letter, a full stop after one of these ends no sentence; none is a common word too."""

CONJUNCTIONS = frozenset({"and", "but", "for", "nor", "or", "so", "yet"})
"""The coordinating conjunctions."""

_PERSONAL = (
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her \
hers herself it its itself they them their theirs themselves"
)
_POINTING = "this that these those"

PRONOUNS = frozenset(
    f"""
    {_PERSONAL} {_POINTING}
    who whom whose which what whoever whomever whatever whichever
    anybody anyone anything everybody everyone everything nobody nothing somebody someone something
    each either neither both all some any none
    """.split()
)
"""Personal, possessive, reflexive, demonstrative, relative, interrogative and indefinite pronouns."""

STOP_WORDS = frozenset(
    f"""
    {_PERSONAL} {_POINTING}
    a an the
    and but if or because as until while so than
    who whom what which when where why how
    am is are was were be been being have has had having do does did doing can will should just now
    of at by for with about against between into through during before after above below to from up down in out on off
    over under again further then once here there
    all any both each few more most other some such no nor not only own same too very
    s t d ll m o re ve y ma don ain aren couldn didn doesn hadn hasn haven isn mightn mustn needn shan shouldn wasn
    weren won wouldn
    """.split()
) - {"mine", "us"}
"""Function words, and what contractions leave behind when an apostrophe splits them (`don` and `t` of `don't`).

The list that NLTK ships has neither `mine` nor `us`, and published numbers are counted by it."""

MINOR_WORDS = frozenset(
    """
    a an the and but or nor for so yet as if at by in of off on per to up via vs v from into onto over out than with
    upon like near past down
    """.split()  # noqa: SIM905
)
"""Words that style guides leave in small letters within a title: articles, short conjunctions and prepositions."""

NAMES = tuple(
    """
    Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin Harper
    Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla
    Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan
    """.split()  # noqa: SIM905
)
"""The fifty names that the instruction `count:person_names` lists to the model."""
