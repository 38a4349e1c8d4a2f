"""Lists of English words that the canonical form depends on: names, ambiguous names, and verbs of actions."""

from typing import Final


def listed(text: str) -> frozenset[str]:
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
NAMES: Final = listed(" ".join((_LANGUAGES, _PLACES, _DAYS, _MAKERS, _PEOPLE)))


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
AMBIGUOUS: Final = listed(
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
INSTRUCTED: Final = ACTIONS - listed(_OF_THE_ADDRESSED)
"""Without verbs of what a person or a company that is asked may do itself: `how do you handle refunds`."""
_DOUBLED: Final = listed("cut get log plan program quit run set stop submit swim transfer win forget")


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
