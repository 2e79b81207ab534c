"""ImageSig: images as the signatures of their rows, the smallest model here (Ibrahim & Lyons 2022)."""
