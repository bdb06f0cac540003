"""Media files in and out: encoders, input images and videos, output paths, names."""
