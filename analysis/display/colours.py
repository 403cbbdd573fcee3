"""Which colours do charts have, on white paper and on a dark screen?

Hues are Okabe and Ito's, which colour-blind readers tell apart. Each colour has a contrast of 3:1 or more to
what it stands on (WCAG 2.2, 1.4.11): where theirs is too pale for white paper, it is darker here.
"""

BLUE, GREEN, VERMILLION, OLIVE = "#0072B2", "#009E73", "#D55E00", "#8A8A00"
PINK, GREY = "#CC79A7", "#7F7F7F"
BROWN, SKY, YELLOW = "#8A5A00", "#2F93CC", "#A39700"
WINE, BLACK = "#882255", "#000000"
DARK_GREY, MID_GREY, PALE_GREY = "#636363", "#767676", "#949494"
# Colour on white -> on a dark screen, where it is another one.
ON_DARK = {
    BROWN: "#E69F00", SKY: "#56B4E9", YELLOW: "#F0E442", WINE: "#C2557F", BLACK: "#E6EDF3",
    DARK_GREY: "#8C8C8C", MID_GREY: "#AAAAAA", PALE_GREY: "#CCCCCC",
}  # fmt: skip

EVERY = (
    BLUE, GREEN, VERMILLION, OLIVE, PINK, GREY, BROWN, SKY, YELLOW, WINE, BLACK, DARK_GREY, MID_GREY,
    PALE_GREY,
)  # fmt: skip
