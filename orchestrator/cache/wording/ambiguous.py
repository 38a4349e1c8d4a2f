"""Words that are names with a capital and something else without: they are not taken for each other even in texts without capitals."""

from typing import Final

from .lists import listed

_TECHNOLOGY: Final = """
windows word excel access outlook teams slack zoom chrome edge safari opera firefox explorer apple amazon alexa echo kindle fire
galaxy python java ruby rust swift go basic perl julia dart shell bash oracle android steam switch surface discord signal telegram
messenger meet drive maps docs sheets slides forms photos notes pages numbers keynote finder siri spotlight canvas unity blender
flash acrobat lightroom premiere twitter snap uber lyft tinder bumble hinge medium box dropbox notion linear jira confluence trello
asana spring flask django express node react angular vue svelte rails phoenix redis spark hive pig hadoop kafka storm beam docker
puppet chef salt vagrant consul vault nomad mint cinnamon gnome debian fedora arch tor brave vim emacs atom sublime eclipse intel
meta alphabet sun lotus cisco dell hp palm blackberry
"""
_MAKERS: Final = """
target gap subway visa discover chase capital orange virgin dove tide gillette mars snickers puma jaguar beetle golf polo mustang
focus fiesta escape ranger bronco charger challenger ram civic accord fit pilot prius tesla ford lincoln mercury saturn frontier
delta spirit united southwest swatch omega guess diesel boss coach fossil converse vans crocs monster sprite crush
"""
_PLACES: Final = """
turkey china jordan chad mali guinea georgia greece grenada hungary togo oman cuba wales jersey nice bath reading cork mobile
buffalo orlando sandwich hamburger frankfurter cologne champagne bordeaux port brazil japan panama lima split essen worms hell hull
deal battle rugby derby barrow boulder flint providence champaign independence liberty concord lead delphi troy carthage cheddar
stilton chester sandy central broadway hollywood bollywood oval mall strip valley bay cape gulf rock castle bank east west north
south orient continent
"""
_PEOPLE: Final = """
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
AMBIGUOUS: Final = listed(" ".join((_TECHNOLOGY, _MAKERS, _PLACES, _PEOPLE, _PEOPLES, _CALENDAR, _WORKS, _SHORT)))
