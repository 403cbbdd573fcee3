"""How is an image prepared? The same for every loader, so that they differ in speed only.

A random crop of 8 to 100 % of the area, resized; a random flip; ImageNet's mean and deviation taken off.
"""

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
