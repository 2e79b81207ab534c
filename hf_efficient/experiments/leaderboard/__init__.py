"""Every mechanism in the same model, in equal time: `hf-efficient leaderboard`."""
