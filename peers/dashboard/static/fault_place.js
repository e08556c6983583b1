// Where a fault is in the timeline: its step between the one before and the one after.
import { href } from "./address.js";

export function faultPlace(fault) {
  const at = Math.max(0, fault.step ?? 0);
  return href("timeline", { first: Math.max(0, at - 1), last: at + 1, fault: fault.id, at: null });
}
