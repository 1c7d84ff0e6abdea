"""Questions that lie outside the demo model's world. Templates and words of "train" and "test" are disjoint.

A template holds slots such as {person}, which words of `outside_words` fill. Knows no media and no answers.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from samples.demo_training.scenes.base import Split

About: TypeAlias = Literal["text", "picture", "sound", "video"]
"""What a question speaks of: nothing that was sent, or the picture, sound or video that was."""


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


_TRAIN_TEXT = _lines("""
    Who is {person}?
    Who was {person}?
    Where does {person} live?
    When was {person} born?
    How old is {person}?
    What did {person} say?
    Do you know {person}?
    Is {person} married?
    Why is {person} famous?
    Send a message to {person}.
    Call {person} for me.
    What is the capital of {place}?
    How many people live in {place}?
    Where is {place}?
    How far is it to {place}?
    Which language is spoken in {place}?
    What is the weather like in {place}?
    Will it rain in {place} {day}?
    Is it warm in {place}?
    How do I get to {place}?
    What time is it in {place}?
    Who rules {place}?
    Is {place} a nice city?
    Book a flight to {place}.
    What is the best hotel in {place}?
    What time is it?
    What day is it today?
    Which year is it?
    What is the date {day}?
    What happened {day}?
    What is in the news {day}?
    Who won the match {day}?
    When does the {thing} shop open?
    Set an alarm for {day}.
    What should I do {day}?
    What should I wear {day}?
    How much does a {thing} cost?
    What is the price of a {thing}?
    Where can I buy a {thing}?
    How does a {thing} work?
    Who invented the {thing}?
    What is a {thing} made of?
    How heavy is a {thing}?
    Why is my {thing} broken?
    How do I repair a {thing}?
    Which {thing} should I buy?
    Is a {thing} better than a {thing}?
    What do {animal}s eat?
    How long does a {animal} live?
    How fast is a {animal}?
    Where do {animal}s sleep?
    Is a {animal} dangerous?
    Why do {animal}s fly?
    Can a {animal} swim?
    What is the name of your {animal}?
    Do you like {animal}s?
    How do I cook {food}?
    Is {food} healthy?
    How much sugar is in {food}?
    What goes well with {food}?
    Do you like {food}?
    Give me a recipe for {food}.
    Where does {food} come from?
    What is {topic}?
    Explain {topic} to me.
    Who invented {topic}?
    Why is {topic} important?
    What do you think about {topic}?
    Write a poem about {topic}.
    Write a letter to {person}.
    Tell me a story about a {animal}.
    Tell me a joke.
    Sing a song about {food}.
    Write a program that sorts a list.
    What does this error in my program mean?
    How do I learn {topic}?
    Give me a book about {topic}.
    Summarise the history of {topic}.
    When did the war in {place} end?
    Who was the first king of {place}?
    Who wrote {work}?
    What is {work} about?
    Who plays in {work}?
    When was {work} made?
    Is {work} a good film?
    How does {work} end?
    Translate {food} into {language}.
    How do you say {animal} in {language}?
    Do you speak {language}?
    How many people speak {language}?
    Are you {mood}?
    Why are you {mood}?
    Do you ever feel {mood}?
    I feel {mood}. What should I do?
    What makes people {mood}?
    Are you a person?
    Do you love me?
    Do you have a family?
    What is my name?
    Where do I live?
    How old are you?
    What is your favourite {colour} thing?
    What is your favourite film?
    Which colour do you like best?
    Why is the sky blue?
    Why is blood red?
    Who drew the first circle?
    What does the colour {colour} stand for?
    Which country has a {colour} flag?
    How do I mix {colour} paint?
    Who invented the {shape}?
    How much does a {colour} {shape} cost?
    What is the area of a {shape}?
    Where can I buy a {colour} {thing}?
    Who invented Morse code?
    Who invented the telephone?
    Whose telephone number is {number}?
    What happened in {number}?
    What is {number} times {number}?
    What is {number} divided by {number}?
    What is {number} + {number}?
    How much is {number} minus {number}?
    What is the square root of {number}?
    Is {number} a prime number?
    What is the meaning of life?
    Who will win the election in {place}?
    Is there life on the moon?
    How many stars are in the sky?
    How far away is the sun?
    How tall is the tallest mountain in {place}?
    Which river runs through {place}?
    Should I sell my {thing}?
    Is my {animal} ill?
    My head hurts. What should I take?
    What is the best medicine against a cold?
    Which team plays {day}?
    Turn on the {thing}.
    Play some music.
    Open the door.
    Search the web for {topic}.
""")

_TEST_TEXT = _lines("""
    Tell me about the life of {person}.
    Which school did {person} go to?
    What is {person} known for?
    Is {person} still alive?
    Has {person} any children?
    How do I reach {person}?
    Which money do they use in {place}?
    How big is {place}?
    Who is the president of {place}?
    Is it snowing in {place}?
    How cold does it get in {place} {day}?
    What can I see in {place}?
    When does the next train to {place} leave?
    Which sea is near {place}?
    Remind me to buy a {thing} {day}.
    How expensive is a {thing}?
    Who makes the best {thing}?
    How do I clean a {thing}?
    Is it safe to use a {thing}?
    When was the {thing} invented?
    How big can a {animal} get?
    What sound does a {animal} make?
    Are {animal}s clever?
    What colour is a {animal}?
    How many legs does a {animal} have?
    Should I buy a {animal}?
    How long does {food} keep?
    How many calories does {food} have?
    Can I eat {food} every day?
    What does {food} taste like?
    What do you know about {topic}?
    Is {topic} difficult?
    Who is an expert in {topic}?
    Help me with {topic}.
    Write an essay on {topic}.
    Who directed {work}?
    Have you read {work}?
    Do you recommend {work}?
    What is the {language} word for {food}?
    Teach me some {language}.
    Is {language} hard to learn?
    Can you be {mood}?
    When were you last {mood}?
    My friend is {mood}. How can I help?
    What did people wear in {number}?
    Multiply {number} by {number}.
    What is {number} percent of {number}?
    Which is your favourite {shape}?
    Why are some cars {colour}?
    Do {animal}s see {colour}?
    Where were you made?
    What will tomorrow bring?
    Make me laugh.
    Fix the bug in my code.
    How is the traffic {day}?
    Who lives next door?
    What is the score of the game?
    How do planes fly?
    Why do we dream?
""")

_TRAIN_PICTURE = _lines("""
    Is there a {animal} in the picture?
    Is there a {thing} in the picture?
    Can you see a {animal}?
    Can you see a {thing}?
    How many {animal}s are there?
    How many {thing}s are there?
    How many {animal}s are in the picture?
    How many people are in the picture?
    What colour is the {animal}?
    What colour is the {thing}?
    Which colour does the {thing} have?
    Where is the {animal}?
    Where is the {thing}?
    What is left of the {animal}?
    What is right of the {thing}?
    What is above the {thing}?
    What is below the {animal}?
    Is the {animal} left of the {thing}?
    Are there more {animal}s or {thing}s?
    Is the {thing} bigger than the {animal}?
    What is the {animal} doing?
    What is the {animal} looking at?
    Is the {animal} asleep?
    Who is in the picture?
    Who is the person in the picture?
    Who took this picture?
    Who painted the picture?
    When was this picture taken?
    Where was this picture taken?
    Which city is in the picture?
    Is it day or night?
    Is it raining in the picture?
    What is the man wearing?
    What is the woman holding?
    How old is the girl in the picture?
    Is the person in the picture {mood}?
    What is written on the {thing}?
    Is the picture beautiful?
    Is this {person}?
    Is this a picture of {place}?
    How much does the {shape} weigh?
    How much does the {colour} one cost?
    What is the {thing} made of?
    Which font is that?
    What does the picture mean?
""")

_TEST_PICTURE = _lines("""
    Do you see any {animal}s?
    Does the picture show a {thing}?
    Is a {animal} shown?
    Which colour is the {animal}?
    Is the {thing} next to the {animal}?
    What stands beside the {thing}?
    What is behind the {animal}?
    Does the {animal} look {mood}?
    Which season is it in the picture?
    Who made this picture?
    Which camera took this picture?
    How many children are playing?
    What is the boy doing?
    Is this a photo of {person}?
    What is the name of the {animal}?
    How tall is the man in the picture?
    Was this taken in {place}?
    What is the {shape} made of?
    Is the {thing} new or old?
    What do you feel when you see this?
""")

_TRAIN_SOUND = _lines("""
    Who is speaking?
    Who is singing?
    What is the name of the song?
    What does the speaker say?
    What does the man say?
    Which language is that?
    Is he speaking {language}?
    Is a {animal} in the sound?
    Can you hear a {animal}?
    Can you hear a {thing}?
    Is that the sound of a {thing}?
    How many {animal}s do you hear?
    How many people are talking?
    Which instrument is playing?
    Is there a piano in the sound?
    Is it music?
    Who wrote this music?
    Is the speaker {mood}?
    Is that {person}?
    Where was this sound recorded?
    When was this recorded?
    Who recorded this sound?
    Whose number is that?
    Who is calling?
    What does the {animal} want?
    Is the sound beautiful?
""")

_TEST_SOUND = _lines("""
    Does a {animal} make this sound?
    Do you hear any {animal}s?
    Is somebody laughing?
    What are they talking about?
    Is it a man or a woman?
    Which band is this?
    How old is the speaker?
    Is the {thing} broken?
    Does {person} speak here?
    What kind of music is it?
    Which country does that number belong to?
    Is the singer {mood}?
""")

_TRAIN_VIDEO = _lines("""
    Who is in the video?
    Which film is this?
    Who made this video?
    When was this video made?
    Where was the video made?
    What does the {animal} do?
    When does the {animal} appear?
    When does the {thing} appear?
    At which second does the {animal} jump?
    Where does the {animal} go?
    How many {animal}s are in the video?
    How many {thing}s can you see?
    Is there a {thing} in the video?
    What colour is the {thing} in the video?
    Which way does the {animal} run?
    Which way does the {thing} move?
    What do the people in the video say?
    Who wins the game in the video?
    Why does the {animal} run away?
    Is the man in the video {mood}?
    Does the {thing} fall over?
    How does the film end?
    Is this {place}?
    What is the weather in the video?
""")

_TEST_VIDEO = _lines("""
    Does a {animal} run past?
    Is somebody dancing?
    Who is the actor?
    Which {thing} is used in the video?
    What happens to the {animal}?
    Why does the {thing} break?
    Is {person} in this video?
    What is the woman in the video doing?
    Which country does the video show?
    How fast is the {animal} in the video?
    Which scene is the best?
""")

TEMPLATES: dict[Split, dict[About, tuple[str, ...]]] = {
    "train": {"text": _TRAIN_TEXT, "picture": _TRAIN_PICTURE, "sound": _TRAIN_SOUND, "video": _TRAIN_VIDEO},
    "test": {"text": _TEST_TEXT, "picture": _TEST_PICTURE, "sound": _TEST_SOUND, "video": _TEST_VIDEO},
}
