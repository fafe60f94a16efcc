"""Real data for checks: clicks of MovieLens-100k or of a Criteo file, and handwritten digits.

Checks load it and give arrays to ranks as inputs; nothing here runs on a host.
"""
