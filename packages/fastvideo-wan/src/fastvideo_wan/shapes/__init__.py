"""The small world that the shipped model lives in: what is drawn, how it is captioned, how it is judged and trained."""
