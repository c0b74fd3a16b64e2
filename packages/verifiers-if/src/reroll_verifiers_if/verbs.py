"""Whether an English word is a verb, by a list of verbs and their regular forms.

A statistical tagger would judge more words, and needs a model that no package brings along. A first word that is a
verb is nearly always one of these.
"""

from __future__ import annotations

from reroll_verifiers_if.english import PRONOUNS, STOP_WORDS

_BASE = """
abandon absorb accelerate accept access accompany accomplish account achieve acknowledge acquire act activate adapt
add address adjust administer admire admit adopt advance advertise advise advocate affect affirm afford agree aid aim
align allocate allow alter amaze analyse analyze anchor annotate announce answer anticipate apologise apologize appeal
appear append apply appoint appreciate approach approve argue arise arm arrange arrive articulate ask aspire assemble
assert assess assign assist assuage assume assure attach attack attain attempt attend attract audit author authorise
authorize automate avoid await awaken award bake balance ban bargain base baste bathe be bear beat beckon become
befriend beg begin behave behold believe belong bend benefit bet beware bid bind bite blame blanch blast blaze bleed
blend bless blink bloom blossom blow boast boil bolster book bookmark boost borrow bother bounce bow brace braid
brainstorm braise break breathe breed brew bridge brighten bring broadcast broil browse brush bubble build bullet
bundle burn burst bury buy calculate calibrate call calm cancel captivate capture caramelize care carry carve cascade
cast catch categorise categorize cause celebrate cement centralise centralize challenge change channel charge chart
chase chat check cheer cherish chew chill choose chop circle circulate circumvent cite claim clarify clash classify
clean clear clench click climb cling close clutch coat coax code collaborate collapse collect comb combat combine come
comfort command commemorate commence comment commit communicate compare compel compete compile complain complete
comply compose comprehend compress comprise compute conceal concede conceive concentrate conclude concoct condense
conduct confess configure confirm confront confuse connect conquer consider consist consolidate construct consult
consume contact contain contemplate continue contrast contribute control converse convert convey convince cook cool
cooperate coordinate copy correct cost count counter cover crack cradle craft crank crash crave crawl create creep
critique crop cross crumble crunch crush cry cuddle cultivate cut dab damage dance dare darken dash dazzle debate
debug debunk decide declare decline declutter decode decorate decrease dedicate deduce deepen defeat defend defer
define deglaze delay delegate delete delight deliver delve demand demonstrate deny depart depend depict deploy derive
describe deserve design desire destroy detail detect deter determine develop devise devote devour dice differ
differentiate dig digest dip direct disagree disappear discard disclose disconnect discover discuss disinfect dislike
dispel display dispute dissolve distinguish distribute dive divide do document dodge dominate donate doodle douse
draft drag drain drape draw dream dress drift drill drink drive drizzle drop drown dump dust dwell earn ease eat echo
edit educate elaborate elect elevate elicit eliminate embark embed embody embrace emerge emit empathise empathize
emphasise emphasize employ empower emulate enable enact encode encounter encourage end endure energise energize engage
enhance enjoy enlist enrich ensure enter entertain entice enumerate envision equate equip eradicate erase escape
establish estimate evaluate evaporate evoke evolve exaggerate examine exceed exchange excite exclude execute exercise
exhale exhaust exhibit exist exit expand expect experience experiment explain explode exploit explore export expose
express extend extract face facilitate fade fail fall familiarise familiarize fancy fasten favor favour fear feature
feed feel fetch fight figure file fill filter finance find finish fit fix flash flatten flee flicker fling flip float
flood flourish flow fly focus fold follow forbid force forecast forego forge forget forgive forgo form formalise
formalize formulate foster found frame free freeze fry fuel fulfil fulfill function fund fuse gain garner garnish
gather gauge gaze generate get giggle give glance gleam glide glorify glow glue go govern grab grant grasp grate greet
grieve grill grind grip groom group grow guard guess guide halt hammer handle hang happen harmonise harmonize harness
harvest hatch haunt have heal heap hear heat heed help hesitate hide highlight hike hint hire hit hoist hold honor
honour hop hope host hover hug hunt hurry hydrate hypothesize identify ignite ignore illuminate illustrate imagine
imitate immerse immortalize impact implement imply import impose improve include incorporate increase indicate induce
indulge infer influence inform infuse inhale inherit initialise initialize initiate inject innovate inquire insert
insist inspect inspire install instruct insulate integrate intend intensify interact interpret interview intrigue
introduce invent invert invest investigate invite invoke involve isolate iterate jiggle jog join jot journey judge
juggle jump justify keep kick kill kindle kiss knead kneel knit knock know label lack ladle land last lather laugh
launch lay lead leaf leak lean leap learn leave lend lengthen let level leverage liberate lie lift light like limit
linger link list listen live load loan locate lock log long look loop loosen lose love lower mail maintain make manage
manipulate map march marinate mark market marry marvel mash master match matter maximise maximize mean meander measure
meditate meet melt memorise memorize mend mention merge mesmerize migrate mimic mince mind mingle minimise minimize
mix mobilise mobilize model moderate modify monitor motivate mount mourn move mow multiply mute nail name narrate
navigate need negotiate nibble nod note notice notify nourish nudge nurture obey observe obtain occupy occur offer
omit open operate oppose optimise optimize orchestrate order organise organize orient originate outline overcome
overlap overlook oversee overwrite owe own pack paint pamper pan paraphrase park participate partner pass paste pat
patch pause pave pay peek peel peer perceive perform permit persist persuade pick picture pin pinch pitch place plan
plant play plead please plot pluck plug plunge poach point polish ponder pop populate portray pose position possess
pound pour practice practise praise pray preach predict prefer preheat prepare prescribe present preserve press
presume pretend prevail prevent prick prioritise prioritize probe proceed process proclaim procure produce program
progress prohibit project prolong promise promote prompt pronounce proofread prop propel propose protect prove provide
prune publish pull pump purchase purify pursue push put puzzle qualify quantify quench query question quit quiz quote
race raise rake rank rate ration reach react read realise realize reap reason rebuild recall recap receive recite
reckon recognise recognize recommend reconcile reconsider reconstruct record recover recruit recycle redo reduce
refactor refer refill refine reflect refrain refresh refrigerate refuse regard register regret regulate rehearse
reheat reimagine reinforce reject rejoice relate relax release rely remain remember remind reminisce remove rename
render renew rent repair repeat rephrase replace replay replenish reply report represent request require reread rerun
rescue research reserve reset reshape reside resist resolve respect respond rest restart restate restore restrain
restrict result resume resurrect retain retell retire retrace retreat retrieve retry return reunite reuse reveal
reverse revert review revise revive revolutionise revolutionize reward rewind rewrite rid ride ring rinse rip ripen
rise risk roam roar roast roll rotate rub ruin rule run rush sacrifice sail salute sample sand sanitize satisfy
saturate saunter saute save savor savour say scale scan scatter schedule scoop score scrape scream scribble scroll
scrub sculpt seal sear search season secure see seek seem seize select sell send separate serve set settle sew shake
shape share sharpen shatter shave shed shelter shield shift shimmer shine ship shoot shop shorten shout shovel show
showcase shred shrink shrug shuffle shut sift sigh sign signal simmer simplify simulate sing sink sit sketch skim skip
slap slash slather sleep slice slide slip slow smash smear smell smile smooth snap snatch sneeze sniff snip snore
snuggle soak soar sob soften solve soothe sort sound sow spark sparkle speak specialise specialize specify spell spend
spice spill spin split sponsor spoon spot spray spread spring sprinkle sprint squash squat squeeze squint squirt stab
stabilise stabilize stack staff stage stain stall stamp stand standardise standardize stare start state stay steal
steam steer step stew stimulate stir stitch stop store straighten strain strap strengthen stress stretch strike strip
strive stroll structure struggle strum study stuff stumble stun submit subscribe substitute succeed suffer suggest
suit summarise summarize summon supervise supplement supply support suppose suppress surge surrender surround survey
survive suspect sustain swallow swap sway swear sweep sweeten swim swing swipe swirl switch synthesise synthesize
tackle tag tailor take talk tame tangle tap taper target taste teach tear tease tell tempt tend terminate test tether
thank thaw thicken think thrive throb throw tick tickle tidy tie tighten tilt tiptoe toast toggle toss touch toughen
tour tow trace track trade train transcend transcribe transfer transform transition translate transmit transplant
transport trap travel traverse treasure treat trek tremble trick trickle trigger trim trust try tuck tug tune turn
tutor twist type unclog unclutter uncover undergo underline understand undertake undo undress unfasten unfold unhook
unify uninstall unite unlace unleash unload unlock unpack unplug unravel unscrew untangle untie unveil unwrap unzip
upcycle update upgrade uphold upload urge use utilise utilize vacuum validate value vanish vary vent venture verify
view visit visualise visualize volunteer vote wade wait wake walk wander want warm warn warp wash waste watch water
wave weaken wear weave weed weep weigh welcome whip whir whirl whisk whisper whittle widen wield wiggle win wink wipe
wish withdraw witness wonder woo work worry wrap wrestle wrinkle write yank yearn yell yield zigzag zip zoom
"""

_IRREGULAR = """
am is are was were been being has had having does did done doing can could will would shall should may might must
arose arisen awoke ate eaten bore borne beaten became began begun beheld bent bet bid bound bit bitten bled blew blown
bred broke broken brought built burnt burst bought cast caught chose chosen clung came cost crept cut dealt dug drew
drawn dreamt drank drunk drove driven dwelt fed fell fallen felt fought found fled flew flown forbade forbidden forgot
forgotten forgave forgiven froze frozen got gotten gave given went gone grew grown ground hung heard hid hidden hit
held kept knelt knew known laid led leapt learnt left lent let lay lain lit lost made meant met overcame oversaw paid
put quit read rode ridden rang rung rose risen ran said saw seen sought sold sent set sewn shook shaken shed shone
shot shown shrank shrunk shut sang sung sank sunk sat slept slid spoke spoken spent spun split spread sprang sprung
stood stole stolen struck stricken strove striven swore sworn swept swam swum swung took taken taught tore torn told
thought thrived threw thrown underwent undergone understood undertook undertaken undid undone upheld woke woken wore
worn wove woven wept won withdrew withdrawn wrote written
sauté sautés sautéed sautéing sauteed sauteing
"""

_SUBJECT_BEFORE = frozenset(
    """
    is are was were has have had can could will would of came went fell began became blew broke chose drew drank
    drove flew forgot gave grew knew rode rang sang sank shook spoke stole swam took threw wore wrote
    """.split()  # noqa: SIM905
)
"""After one of these, a form that can also be a noun is read as one: `Plants are`, `Design of`, `Spring came`."""

_MOSTLY_NOUNS = frozenset(
    """
    age arm author book bridge cause cost fear field figure force function fund ground honor honour journey light
    love mark market master matter model mount nail park program race reason rose sound spice spring stage star
    state structure value voice water wave witness
    """.split()  # noqa: SIM905
)
"""Forms of verbs that start a sentence as a noun more often: `Water covers`, `Rose petals`."""

_OBJECT = (STOP_WORDS | PRONOUNS) - _SUBJECT_BEFORE - {"and", "but", "or", "be", "do", "does", "did", "should", "just"}
"""After one of these, or an adverb in -ly, even those are verbs: `Water the plants`, `Book it`, `Spring up`."""

_NAMES = frozenset({"may", "will"})


def _regular(base: str) -> set[str]:
    """The regular forms of a verb; those that spelling leaves open are given both ways."""
    if base.endswith("e"):
        stem = base[:-1]
        ing = {base + "ing"} if base.endswith(("ee", "oe", "ye")) else {stem + "ing"}
        return {base, base + "s", base + "d"} | (ing if not base.endswith("ie") else {base[:-2] + "ying"})
    if base.endswith("y") and base[-2:-1] not in tuple("aeiou"):
        return {base, base[:-1] + "ies", base[:-1] + "ied", base + "ing"}
    forms = {base, base + "s", base + "ed", base + "ing"}
    if base.endswith(("s", "x", "z", "ch", "sh", "o")):
        forms.add(base + "es")
    if len(base) > 2 and base[-1] not in "aeiouwxy" and base[-2] in "aeiou" and base[-3] not in "aeiou":
        forms |= {base + base[-1] + "ed", base + base[-1] + "ing"}
    return forms


_BASES = frozenset(_BASE.split())
_FORMS = frozenset(form for base in _BASES for form in _regular(base)) | frozenset(_IRREGULAR.split())


def is_verb(word: str, following: str = "") -> bool:
    """Whether `word`, in small letters, is a form of a verb; `following` is the next word of the text."""
    part = word.removesuffix("n't").removesuffix("n’t") if word.endswith(("n't", "n’t")) else word
    part = part.replace("’", "'").split("'", maxsplit=1)[0]
    if part not in _FORMS and part not in ("ca", "wo", "sha"):
        return False
    if part in _MOSTLY_NOUNS and following and following not in _OBJECT and not following.endswith("ly"):
        return False
    also_noun = part in _BASES or part.removesuffix("s") in _BASES or part in _NAMES
    return not (also_noun and following in _SUBJECT_BEFORE and part not in ("do", "have", "be", "let"))
