"""Does training for the true overlap gain more where boxes say less about it? Masks, keypoints and oriented boxes of `shapes`."""
