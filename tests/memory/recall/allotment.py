"""A made-up conversation over several sessions, and questions with the turns that answer them."""

from typing import Final

SESSIONS: Final = {
    "march": [
        ("Ines", "Hi Tomasz! I finally got the keys to the allotment behind the railway station."),
        ("Tomasz", "Congratulations! How big is it?"),
        ("Ines", "About two hundred square metres, with a shed that leaks. The previous tenant left a greenhouse frame without glass."),
        ("Tomasz", "My cousin Wiktor is a glazier, I can ask him for offcuts."),
        ("Ines", "That would be wonderful. I want to grow tomatoes and maybe melons in it."),
        ("Tomasz", "By the way, I have started learning the accordion. My neighbours are suffering."),
        ("Ines", "Ha! Since when do you like folk music?"),
        ("Tomasz", "Since my grandmother left me hers last winter. It is a red one from 1952."),
    ],
    "april": [
        ("Tomasz", "Wiktor has twelve panes for you, free of charge, if you fetch them on a Saturday."),
        ("Ines", "Perfect, my brother lends me his van. How is the practising going?"),
        ("Tomasz", "Slowly. I had to see a doctor because my left wrist hurts from the bellows."),
        ("Ines", "Oh no. What did she say?"),
        ("Tomasz", "Tendonitis. Two weeks without playing, and exercises every morning."),
        ("Ines", "Take care of it. I sowed beans and chard yesterday, and something dug up all the seed potatoes."),
        ("Tomasz", "Foxes?"),
        ("Ines", "A badger, says the old man from the next plot. He lent me an electric fence."),
    ],
    "june": [
        ("Ines", "The greenhouse is done! It took three weekends and one broken pane."),
        ("Tomasz", "Send me a picture when the first fruit is ripe."),
        ("Ines", "The melons look good, but the tomatoes have blight, I had to burn half of them."),
        ("Tomasz", "What a pity. I bought copper spray once for my roses, it helped a bit."),
        ("Ines", "I would rather not spray. Next year I will plant a resistant kind."),
        ("Tomasz", "I have good news, too: the wrist is fine again, and I played at a wedding in Gdynia."),
        ("Ines", "In front of people! Were you nervous?"),
        ("Tomasz", "Terribly. I forgot the second verse, but the bride's father sang so loudly that nobody noticed."),
    ],
    "september": [
        ("Tomasz", "I am moving, the new flat is in Sopot, five minutes from the sea."),
        ("Ines", "Because of the job at the shipyard?"),
        ("Tomasz", "Yes, they offered me the planning department from October on."),
        ("Ines", "Then you must come for the harvest festival before you go, it is on the nineteenth."),
        ("Tomasz", "Gladly. Shall I bring anything?"),
        ("Ines", "Your instrument, of course. And a crate, because I have more chard than anybody can eat."),
        ("Ines", "My sister is bringing her twins, they are crazy about the hedgehog that lives under the shed."),
        ("Tomasz", "Is the roof of the shed tight by now?"),
        ("Ines", "Yes, I covered it with sedum, it keeps the rain out and the bees love it."),
    ],
}

QUESTIONS: Final = {
    "How large is Ines's allotment?": {"march:2"},
    "What did Tomasz inherit from his grandmother?": {"march:5", "march:7"},
    "Who gave Ines the glass for the greenhouse?": {"march:3", "april:0"},
    "What was wrong with Tomasz's wrist?": {"april:2", "april:4"},
    "Which animal destroyed the seed potatoes?": {"april:5", "april:7"},
    "What happened to the tomatoes?": {"june:2"},
    "Where did Tomasz perform?": {"june:5"},
    "What went wrong when Tomasz played at the wedding?": {"june:7"},
    "Where does Tomasz move to?": {"september:0"},
    "What is Tomasz's new job?": {"september:1", "september:2"},
    "When is the harvest festival?": {"september:3"},
    "How was the leaking shed repaired?": {"march:2", "september:8"},
    "What vegetables did Ines plant?": {"march:4", "april:5", "september:5"},
    "What animals live on the allotment?": {"april:7", "september:6"},
}
"""With the session and number of each turn of the answer."""
