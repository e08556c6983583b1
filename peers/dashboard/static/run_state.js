// The run's states in words: what the coordinator says, with the symbol and the colour class that go with each.
export const STATES = {
  starting: { symbol: "◐", kind: "joining" },
  waiting: { symbol: "▲", kind: "slow" },
  training: { symbol: "●", kind: "good" },
  evaluating: { symbol: "◆", kind: "good" },
  sampling: { symbol: "◆", kind: "good" },
  pausing: { symbol: "‖", kind: "idle" },
  paused: { symbol: "‖", kind: "idle" },
  finishing: { symbol: "◇", kind: "good" },
  finished: { symbol: "■", kind: "good" },
  stopping: { symbol: "◇", kind: "leaving" },
  stopped: { symbol: "■", kind: "idle" },
};
