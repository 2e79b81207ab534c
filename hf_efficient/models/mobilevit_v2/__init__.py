"""MobileViTv2: convolutions and separable self-attention (Mehta & Rastegari 2022), for classification and beyond."""
