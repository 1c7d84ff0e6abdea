"""Words for the slots of the questions in `outside`; "train" and "test" share only the words of the model's world.

Knows no templates. A word may begin with a vowel (the caller mends the article); every thing and animal takes a
plain "s".
"""

from __future__ import annotations

from samples.demo_training.scenes.base import Split


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


WORDS: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "person": _words(
            "Anna, Peter, Mary, John Smith, Einstein, Mozart, Napoleon, Cleopatra, Shakespeare, Darwin, Newton, "
            "Gandhi, Picasso, Beethoven, Marie Curie, Lincoln, my mother, my brother, my teacher, my neighbour, "
            "the queen, the pope, the mayor, Julia, Ahmed, Chen, Ivan, Fatima, Carlos, Elena, Doctor Brown"
        ),
        "place": _words(
            "France, Berlin, London, Japan, China, India, Brazil, Egypt, Paris, Rome, Madrid, Moscow, Canada, "
            "Kenya, Mexico, Texas, New York, Sydney, Norway, Poland, Turkey, Peru, Cuba, Vienna, Africa, Europe, "
            "Chicago, Hamburg, Iceland, my town, Spain, Greece"
        ),
        "day": _words(
            "today, tomorrow, yesterday, on Monday, on Friday, next week, last year, this evening, in July, "
            "in winter, next month, at noon, this weekend"
        ),
        "thing": _words(
            "car, house, table, chair, phone, book, lamp, tree, bike, boat, train, bottle, cup, hat, shoe, clock, "
            "door, window, piano, guitar, camera, computer, bed, flower, ball, bag, knife, plane, ship, truck, "
            "apple, banana, umbrella, television, bridge, mirror, sofa, hexagon, heart, arrow, robot, drum"
        ),
        "animal": _words(
            "dog, cat, horse, cow, bird, lion, tiger, elephant, snake, rabbit, bear, chicken, duck, frog, spider, "
            "monkey, pig, goat, whale, shark, bee, turtle, zebra, penguin, camel, rat, eagle"
        ),
        "food": _words(
            "bread, rice, soup, cheese, pizza, pasta, chocolate, butter, fish, honey, salad, coffee, tea, milk, "
            "cake, beer, salt, eggs, tomatoes, potatoes, beans, garlic, ice cream"
        ),
        "topic": _words(
            "physics, chess, football, history, politics, gravity, music, love, money, philosophy, mathematics, "
            "religion, biology, art, fashion, electricity, the economy, evolution, democracy, photography, tennis, "
            "poetry, medicine, law, computers, space travel, the brain, war, peace, sleep, gardening"
        ),
        "work": _words(
            "Hamlet, Faust, the Bible, Star Wars, Titanic, Macbeth, Don Quixote, The Magic Flute, Peter Pan, "
            "War and Peace, King Kong, Robinson Crusoe, The Lion King, Moby Dick, Casablanca, Alice in Wonderland"
        ),
        "language": _words(
            "French, German, Spanish, Chinese, Latin, Russian, Arabic, Italian, Greek, Polish, Hindi, Dutch, "
            "Turkish"
        ),
        "mood": _words(
            "happy, sad, tired, angry, lonely, afraid, bored, in love, hungry, jealous, proud, ill, shy"
        ),
        "colour": _words("red, green, blue, yellow, orange, purple, black, white"),
        "shape": _words("circle, square, triangle, star, cross"),
    },
    "test": {
        "person": _words(
            "Mozart's sister, Galileo, Bach, Caesar, Rembrandt, Kepler, Tolstoy, Goethe, Columbus, Sofia, Henrik, "
            "Yuki, my uncle, my boss, the president, the baker, Professor White, Tom Miller"
        ),
        "place": _words(
            "Italy, Portugal, Lisbon, Tokyo, Vietnam, Chile, Sweden, Dublin, Athens, Nigeria, Prague, Boston, "
            "Finland, Bavaria, Korea, my street"
        ),
        "day": _words(
            "tonight, on Tuesday, next Sunday, in autumn, last night, in May, in the morning, next year"
        ),
        "thing": _words(
            "bus, pencil, spoon, basket, violin, carpet, ladder, bucket, helicopter, wallet, fridge, tent, "
            "pentagon, oval, hammer, trumpet, candle, printer"
        ),
        "animal": _words(
            "hamster, parrot, crocodile, dolphin, owl, kangaroo, donkey, squirrel, giraffe, lizard, crab, "
            "panda, ant"
        ),
        "food": _words(
            "noodles, yoghurt, sausages, pancakes, lemonade, olives, mushrooms, porridge, jam, curry"
        ),
        "topic": _words(
            "chemistry, astronomy, basketball, architecture, psychology, climate change, opera, geology, sailing, "
            "robotics, taxes, grammar, statistics, yoga, the stock market"
        ),
        "work": _words(
            "Odyssey, Dracula, Frankenstein, Pinocchio, Carmen, Robin Hood, Jurassic Park, The Hobbit, Oliver Twist"
        ),
        "language": _words("Portuguese, Japanese, Swedish, Korean, Finnish, Hebrew, Welsh"),
        "mood": _words("nervous, thirsty, cheerful, confused, homesick, calm, grumpy"),
        "colour": _words("red, green, blue, yellow, orange, purple, black, white"),
        "shape": _words("circle, square, triangle, star, cross"),
    },
}
