//! Ranks as processes: spawning, supervision, and the environment variables of torchrun.
