from hypothesis import settings

settings.register_profile("ir", deadline=None, max_examples=60)
settings.load_profile("ir")
