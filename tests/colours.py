"""How far colours stand apart, and from their ground, for readers with any of the common kinds of vision."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from matplotlib.colors import to_rgb

VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Linear RGB as seen, after Machado, Oliveira and Fernandes 2009, at severity 1."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    channels = np.array(to_rgb(color))
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(color: str, ground: str) -> float:
    """Ratio of luminances as WCAG 2 defines it."""
    lighter, darker = sorted((float(XYZ[1] @ linear(each)) for each in (color, ground)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def lab(seen: np.ndarray) -> np.ndarray:
    relative = XYZ @ seen.clip(0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def closest(colors: Sequence[str], vision: str) -> float:
    seen = [lab(np.asarray(VISIONS[vision]) @ linear(color)) for color in colors]
    return min(float(np.linalg.norm(first - second)) for first, second in combinations(seen, 2))
