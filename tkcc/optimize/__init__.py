"""The main job in one process: propose rewrites, swap them into a decode loop, judge them."""
