"""Undo harmless changes of words: contractions, spellings, singular and plural, words that may be left out; and lists of words."""

import re
from collections.abc import Mapping, Sequence
from typing import Final


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_LANGUAGES: Final = """
english french german spanish italian portuguese dutch russian japanese chinese
korean arabic hebrew hindi urdu bengali tamil telugu marathi gujarati punjabi latin greek turkish swedish norwegian finnish
icelandic hungarian romanian bulgarian ukrainian persian vietnamese indonesian esperanto sanskrit mandarin cantonese american
british canadian australian mexican brazilian indian pakistani african european asian
"""
_PLACES: Final = """
america europe asia africa australia usa uk england scotland ireland france germany spain italy portugal netherlands belgium
switzerland austria sweden norway finland iceland russia ukraine romania bulgaria hungary japan korea india pakistan bangladesh
nepal vietnam thailand indonesia malaysia singapore philippines taiwan iran iraq israel egypt nigeria kenya ethiopia canada mexico
brazil argentina peru colombia venezuela cuba london berlin munich hamburg vienna madrid barcelona lisbon rome milan venice
amsterdam brussels zurich stockholm oslo copenhagen helsinki moscow tokyo kyoto osaka beijing shanghai delhi mumbai bangalore
hyderabad chennai kolkata pune dubai istanbul cairo sydney melbourne toronto vancouver chicago boston seattle texas california
florida
"""
_DAYS: Final = """
monday tuesday wednesday thursday friday saturday sunday january february april june july september october november december
christmas easter
"""
_MAKERS: Final = """
google facebook youtube linkedin instagram whatsapp paypal netflix spotify quora reddit tumblr ebay microsoft ibm samsung nokia
toyota honda bmw iphone ipad android linux ubuntu macos javascript typescript postgresql mysql sqlite html css sql php wifi wi-fi
pdf usb gmail github docker kubernetes wordpress photoshop bitcoin ethereum wikipedia tv cpu gpu hiv dna upsc ielts toefl gmat mba
gre
"""
_PEOPLE: Final = "trump clinton obama hitler einstein gandhi modi shakespeare newton darwin napoleon stalin lenin putin"
NAMES: Final = word_set(" ".join((_LANGUAGES, _PLACES, _DAYS, _MAKERS, _PEOPLE)))


_TECHNOLOGY: Final = """
windows word excel access outlook teams slack zoom chrome edge safari opera firefox explorer apple amazon alexa echo kindle fire
galaxy python java ruby rust swift go basic perl julia dart shell bash oracle android steam switch surface discord signal telegram
messenger meet drive maps docs sheets slides forms photos notes pages numbers keynote finder siri spotlight canvas unity blender
flash acrobat lightroom premiere twitter snap uber lyft tinder bumble hinge medium box dropbox notion linear jira confluence trello
asana spring flask django express node react angular vue svelte rails phoenix redis spark hive pig hadoop kafka storm beam docker
puppet chef salt vagrant consul vault nomad mint cinnamon gnome debian fedora arch tor brave vim emacs atom sublime eclipse intel
meta alphabet sun lotus cisco dell hp palm blackberry
"""
_AMBIGUOUS_MAKERS: Final = """
target gap subway visa discover chase capital orange virgin dove tide gillette mars snickers puma jaguar beetle golf polo mustang
focus fiesta escape ranger bronco charger challenger ram civic accord fit pilot prius tesla ford lincoln mercury saturn frontier
delta spirit united southwest swatch omega guess diesel boss coach fossil converse vans crocs monster sprite crush
"""
_AMBIGUOUS_PLACES: Final = """
turkey china jordan chad mali guinea georgia greece grenada hungary togo oman cuba wales jersey nice bath reading cork mobile
buffalo orlando sandwich hamburger frankfurter cologne champagne bordeaux port brazil japan panama lima split essen worms hell hull
deal battle rugby derby barrow boulder flint providence champaign independence liberty concord lead delphi troy carthage cheddar
stilton chester sandy central broadway hollywood bollywood oval mall strip valley bay cape gulf rock castle bank east west north
south orient continent
"""
_AMBIGUOUS_PEOPLE: Final = """
mark bill rose jack frank grace hope faith joy penny sue pat rob nick drew chuck dean earl duke prince king queen bishop pope will
may april june august summer autumn dawn eve ivy lily daisy iris jasmine violet heather hazel olive holly ginger pepper sage basil
rosemary amber pearl jade crystal gene art bob dick peter john jean bush rice brown green white black gray grey young long short
wood stone hill field banks brooks rivers lake cook baker smith carpenter mason taylor tyler fisher hunter parker carter turner
walker miller potter cooper fox wolf bird crow drake robin martin jay cage cruise pitt grant love page gates jobs musk cash sting
pink bono seal cher usher nelly ludacris chance common future heart eagles doors police cars cream yes who kiss rush journey boston
chicago europe asia blur oasis genesis muse garbage hole train bread foreigner toto madonna ali curie volt watt newton joule kelvin
hertz ohm pascal celsius job ruth mary mole graves bell ampere hooker major minor cheney booth jolly
"""
_PEOPLES: Final = """
polish dutch german welsh manx maori moor scotch swede dane finn pole turk thai lao catholic democrat republican liberal
conservative labour tory independent federal union congress parliament senate house cabinet state commons lords court supreme
constitution
"""
_CALENDAR: Final = """
march mon sat wed lent easter advent passover good fall sabbath labor memorial boxing venus earth moon jupiter
"""
_WORKS: Final = """
frozen friends lost heroes bones suits office it her us up coco alien aliens jaws psycho speed titanic avatar gravity inception
interstellar arrival tenet dune joker parasite twilight matrix goodfellas casino heat scream seven signs saw ring mask shrek emma
dracula ulysses persuasion beloved matilda coraline holes wonder wicked cats hair grease rent chess evita hamilton annie oliver
yesterday help imagine hello thriller bad dangerous jealous sorry stay faded perfect happy royals wrecking halo diamonds umbrella
god bible exodus judges kings acts romans internet web net giants bears lions tigers rams jets bills saints angels twins reds sox
cubs padres rangers rockets suns magic nets bulls bucks wizards hornets spurs arsenal wanderers rovers albion
"""
_SHORT: Final = """
aids cat mad it's ms mr ad pm am id ok tv mp pi ma pa la io on in or me de al ai ar vr ip os no so an as at by do he if is my of to
we
"""
AMBIGUOUS: Final = word_set(
    " ".join((_TECHNOLOGY, _AMBIGUOUS_MAKERS, _AMBIGUOUS_PLACES, _AMBIGUOUS_PEOPLE, _PEOPLES, _CALENDAR, _WORKS, _SHORT))
)


_ACTIONS: Final = """
access achieve add apply approach attach attract avoid backup bake become boil book boost build burn buy calculate cancel change charge
check choose clean clear close compare compile configure connect contact control convert cook copy correct create cure cut deal debug
decide decorate define delete describe design develop disable download draw dress drive dry dye earn edit email embed enable
encrypt end enter erase exchange expand export extend extract file fill find finish fix fly fold forget format freeze gain generate
get grow handle hack hang hide hire host identify implement import improve increase insert install invest join juggle keep kill
learn lift limit link list load lock log lose lower maintain make manage measure meditate merge mine mix motivate move negotiate open
optimize organise organize overcome pack paint park parse pass paste pay peel perform plan plant play post practice prepare prevent
print program promote pronounce prove publish pull push quit raise reach read recover reduce register remove rename renew rent repair
replace report request reset resize restart restore reverse revise roast root run save scan search select sell send set setup
share sharpen sign sketch solve sort spell split spread start stay stop store study submit survive swim teach test throw tie train
transfer translate travel treat turn type uninstall unlock update upgrade upload use verify wash watch win write
"""
ACTIONS: Final = frozenset(_ACTIONS.split())
_OF_THE_ADDRESSED: Final = """
achieve add apply approach attach attract avoid book build buy calculate change charge check choose compare connect contact
control correct cure deal decide define describe design develop drive earn end exchange expand fill find file fit grow handle hide
hire host identify implement improve increase invest join keep kill limit link list load lower maintain manage measure motivate
move negotiate overcome pack pass pay perform plan post practice prepare prevent promote prove publish reach recover register rent
replace report request review save search select sell send share solve spend spread start stay stop store study submit survive
teach test train transfer travel treat use verify win
"""
INSTRUCTED: Final = ACTIONS - word_set(_OF_THE_ADDRESSED)
"""Without verbs of what a person or a company that is asked may do itself: `how do you handle refunds`."""
_DOUBLED: Final = word_set("cut get log plan program quit run set stop submit swim transfer win forget")


def plain_of(participle: str) -> str | None:
    """Return the verb of a form in `-ing`; None where it is none of an action."""
    return _PARTICIPLES.get(participle)


def _participle(verb: str) -> str:
    if verb in _DOUBLED:
        return f"{verb}{verb[-1]}ing"
    if verb.endswith("ie"):
        return f"{verb[:-2]}ying"
    return f"{verb[:-1]}ing" if verb.endswith("e") and not verb.endswith(("ee", "ye")) else f"{verb}ing"


_PARTICIPLES: Final = {_participle(verb): verb for verb in sorted(ACTIONS)}


_NEGATED: Final = "do|does|did|is|are|was|were|has|have|had|would|could|should|must|need"
_PATTERNS: Final = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\b(?:can't|cannot|cant)\b", "can not"),
        (r"\bwon't\b", "will not"),
        (rf"\b({_NEGATED})n't\b", r"\1 not"),
        (r"\b(do|does|did|is|are|was|were|has|have|had|would|could|should)nt\b", r"\1 not"),
        (r"\b(i)'m\b", r"\1 am"),
        (r"\b(you|we|they|who|what|how|where)'re\b", r"\1 are"),
        (r"\b(i|you|we|they|who)'ve\b", r"\1 have"),
        (r"\b(i|you|he|she|it|we|they|who|that|there|what)'ll\b", r"\1 will"),
        (r"\b(i|you|he|she|we|they)'d (?=like|rather|love|prefer|be)\b", r"\1 would "),
        (r"\bwhats\b", "what is"),
        (
            r"\b(what|who|how|where|when|why|it|that|there|he|she|here)'s\b"
            r"(?! (?:\w+ )?(?:been|got|gotten|become|gone|come|done|made|taken|had|left|\w+ed)\b)",
            r"\1 is",
        ),
    )
)
"""`'s` stays as it is where it may stand for `has`, and where it says whose."""


def without_contractions(text: str) -> str:
    """Return a text in which contractions of pronouns and auxiliaries are written out."""
    for pattern, plain in _PATTERNS:
        text = pattern.sub(plain, text)
    return text


_SAME: Final = """
color colour|colors colours|favorite favourite|flavor flavour|flavors flavours|humor humour|labor labour|neighbor neighbour
neighbors neighbours|behavior behaviour|center centre|centers centres|theater theatre|liter litre|liters litres|meter metre|meters metres
kilometer kilometre|kilometers kilometres|gray grey|defense defence|offense offence|traveling travelling|traveler traveller
canceled cancelled|modeling modelling|jewelry jewellery|program programme|aluminum aluminium|pajamas pyjamas|skeptical sceptical
misdemeanor misdemeanour|honor honour|rumor rumour|odor odour|vapor vapour|mold mould|tire tyre|tires tyres|plow plough|fiber fibre
maneuver manoeuvre|pediatric paediatric|anemia anaemia|diarrhea diarrhoea|estrogen oestrogen|encyclopedia encyclopaedia
organize organise|organizing organising|realize realise|recognize recognise|analyze analyse|optimize optimise|apologize apologise
memorize memorise|summarize summarise|customize customise|organization organisation|organizations organisations
buy purchase|buying purchasing|tv television|tvs televisions|math maths mathematics|email e-mail|emails e-mails|wifi wi-fi|website web-site
photo photograph|photos photographs|ok okay|anyone anybody|someone somebody|everyone everybody|while whilst
among amongst|until till|government govt|info information|smartphone smart-phone|ebook e-book|ebooks e-books
2 two|3 three|4 four|5 five|6 six|7 seven|8 eight|9 nine|10 ten|11 eleven|12 twelve
"""
_PLAIN: Final = {word: same.split()[0] for line in _SAME.strip().splitlines() for same in line.split("|") for word in same.split()}
_PHRASES: Final = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\b(?:the us\b|(?:the )?(?:U\.S(?:\.A)?\.?|US|USA|usa|[Uu]nited [Ss]tates(?: of [Aa]merica)?)(?![\w.]))", "usa"),
        (r"\b(?:the )?(?:U\.K\.?|UK|uk|[Uu]nited [Kk]ingdom)(?![\w.])", "uk"),
        (r"\b(\d+(?:\.\d+)?) ?(?:%|percent\b|per cent\b)", r"\1 %"),
        (r"\b(\d+)(GB|MB|TB|kg|km|cm|mm|mph|kWh)\b", r"\1 \2"),
        (r"\b(\d{1,3}(?:,\d{3})+)(?![\d.,])", lambda found: found[1].replace(",", "")),
        (r"\b(make|making|earn|earning) money\b", lambda found: "earning money" if found[1].endswith("g") else "earn money"),
    )
)
_ABOUT_WORDS: Final = word_set(
    "mean meaning means define defined definition word words spell spelled spelt spelling pronounce pronounced pronunciation synonym"
    " synonyms antonym plural singular rhyme rhymes call called phrase term terms translate translation grammar letter letters"
    " abbreviation stand stands difference differences differ different versus vs compare say saying write written"
)
"""Words of questions about words, in which no word stands for another one."""


def in_one_spelling(text: str) -> str:
    """Return a text whose words are spelled in one way, but where the words themselves are asked about."""
    words = text.split()
    if _ABOUT_WORDS.intersection(word.lower() for word in words):
        return text
    text = " ".join(_PLAIN.get(word, word) for word in words)
    for pattern, plain in _PHRASES:
        text = pattern.sub(plain, text)
    return text


_ONE: Final = re.compile(r"^(what |why |how )(is|does) an? (?=[a-z])")
_ALL: Final = re.compile(r"^(what |why |how )(are|do) (?=[a-z])")
_ANY: Final = re.compile(r"^what is (?=([a-z]+(?: [a-z]+){1,3})$)")
_BEST: Final = re.compile(r"^(what|who) (?:is|are) the best (?=[a-z])")
_PURPOSE: Final = re.compile(r"^((?:[a-z]+ ){1,3})for ([a-z]+ing)\b")
_AGREES: Final = re.compile(r"^((?:what |why |how |when |where |who )?)(is|are|does|do)\b")
_OWN_MEANING: Final = word_set(
    "glasses customs securities goods arms means savings damages scales minutes papers looks manners spirits news works waters physics"
    " mathematics politics economics statistics ethics athletics gymnastics premises proceeds contents clothes thanks pants trousers"
    " shorts jeans scissors stairs ashes brains guts airs colors colours letters forces grounds quarters remains terms times effects"
    " irons lights drugs numbers bonds stocks shares futures options odds belongings surroundings headquarters series species people"
    " blues greens woods irons holidays odds wages arts sports races regards respects compasses draughts checkers dominoes things"
)
"""Plurals that mean something else than several of their singular."""
_MEASURES: Final = word_set(
    "seconds minutes hours days weeks months years decades centuries miles kilometers kilometres meters metres feet inches pounds"
    " kilos grams ounces liters litres gallons dollars euros cents rupees degrees calories points percent"
)
_IN_IE: Final = word_set("movies cookies calories zombies selfies rookies hoodies smoothies brownies genies pixies prairies ties pies lies")
_STOP: Final = word_set(
    "the a an this these that those my your his her its our their i you he she it we they there some any all most no each every both"
    " not is are was were do does did has have had and or of in on at to for by with from always sometimes perhaps as us else"
)
_FARTHEST: Final = 3
"""Words after the auxiliary among which the noun is looked for."""
_LEAST: Final = 4
"""Letters of a plural."""


def of_a_kind(text: str) -> str:
    """Return a question about a kind of thing in one form, for one of them or all."""
    return _AGREES.sub(lambda found: found[1] + _NUMBERLESS[found[2]], _of_a_kind(text))


def _of_a_kind(text: str) -> str:
    best = _BEST.search(text)
    if best is not None:
        rest = text[best.end() :]
        return f"{best[1]} is the best ~ {_for_purpose(_of_one(rest) or rest)}"
    bare = _ANY.search(text)
    if bare is not None and not _STOP.intersection(bare[1].split()):
        return text.replace("what is ", "what be ~ ", 1)
    one = _ONE.search(text)
    if one is not None:
        return f"{one[1]}{_NUMBERLESS[one[2]]} ~ {text[one.end() :]}"
    several = _ALL.search(text)
    single = None if several is None else _of_one(text[several.end() :])
    return text if several is None or single is None else f"{several[1]}{_NUMBERLESS[several[2]]} ~ {single}"


_NUMBERLESS: Final = {"is": "be", "are": "be", "does": "do", "do": "do"}


def _for_purpose(text: str) -> str:
    """Return `app to learn` for `app for learning`."""
    found = _PURPOSE.search(text)
    verb = None if found is None else plain_of(found[2])
    return text if found is None or verb is None else f"{found[1]}to {verb}{text[found.end() :]}"


def _of_one(rest: str) -> str | None:
    """Return a text whose first plural is made a singular; None where there is none that is the same thing."""
    words = rest.split()
    for place, word in enumerate(words[:_FARTHEST]):
        if word in _STOP or not word.isalpha() or not word.islower():
            return None
        if word in _OWN_MEANING or word in _MEASURES:
            return None
        if len(word) >= _LEAST and word.endswith("s") and not word.endswith(("ss", "us", "is", "as", "ics")):
            return " ".join([*words[:place], _singular(word), *words[place + 1 :]])
    return None


def _singular(word: str) -> str:
    if word in _IN_IE:
        return word[:-1]
    if word.endswith("ies") and len(word) > _LEAST + 1:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes", "oes")):
        return word[:-2]
    return word[:-1]


BEST: Final = "<best>"
GOOD: Final = "<good>"
SOME: Final = "<some>"
"""In front of `how-to`: it was asked for the best way, a good one, or any."""

_ARTICLES: Final = frozenset(("a", "an", "the"))
_CLOSED: Final = word_set(
    "a an the this that these those my your his her its our their i me you he him she it we us they them who what which whose when where"
    " why how not no nor and or but if as than so too very only also even just still in on at for of to about from with into onto over"
    " under by off up down out through against between near behind above below without within during before after since until while"
    " be am is are was were been being do does did done has have had can could may might must shall should will would"
    " few little lot lots bit number couple more most less least other others another same such some any all each every both either"
    " people first second third last next only one"
)
"""Words that are neither noun nor adjective, and those that mean something else with an article, as in `a few`."""


_PLURAL: Final = re.compile(r"[^su]s$")


def without_marks(words: Sequence[str]) -> tuple[tuple[str, ...], Mapping[int, str]]:
    """Return the words without those that may be left out, and these by the place of the word that they stand before.

    An article may be left out before an adjective and a noun, or two nouns: `the average cost`. It may not before a single noun, since `the
    time` is not `time`; nor before a plural, since `the red cars` are certain ones; nor next to an auxiliary, where the second word may be
    a verb: `do the people want`.
    """
    kept: list[str] = []
    marks: dict[int, str] = {}
    for place, word in enumerate(words):
        if word in (BEST, GOOD, SOME):
            marks[len(kept)] = word
        elif word in _ARTICLES and _is_spare(words, place):
            marks[len(kept)] = "a" if word == "an" else word
        else:
            kept.append(word)
    return tuple(kept), marks


def _is_spare(words: Sequence[str], place: int) -> bool:
    following = words[place + 1 : place + 3]
    if len(following) < 2 or any(word in _CLOSED or not word[0].isalpha() or _PLURAL.search(word) for word in following):
        return False
    if place == 0 or words[place - 1] in ("~", *_AUXILIARIES):
        return place == 2 and words[:2] in (["what", "is"], ["what", "be"], ["what", "are"])
    return True


_AUXILIARIES: Final = word_set(
    "be am is are was were been being do does did has have had can could may might must shall should will would how-to"
)


def agree(mine: Mapping[int, str], theirs: Mapping[int, str]) -> bool:
    """Return whether no word of one stands where the other has another one."""
    return all(theirs.get(place, word) == word for place, word in mine.items())
