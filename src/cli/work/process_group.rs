//! Check for living processes of a process group.

use std::fs;

use rustix::process::{Pid, test_kill_process_group};

/// Returns whether any process of a group lives. kill(2) also counts ended ones until their parent has waited for
/// them, and the parent of orphans may do that late.
pub(super) fn is_alive(group: Pid) -> bool {
    if test_kill_process_group(group).is_err() {
        return false;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let mut any = false;
    for process in processes.flatten() {
        let Ok(stat) = fs::read_to_string(process.path().join("stat")) else { continue };
        any = true;
        if is_living_member(&stat, group) {
            return true;
        }
    }
    // A `/proc` that is not that of Linux.
    !any
}

/// Returns whether this `/proc/PID/stat` is of a living process of the group: `7 (sh) S 1 7 …`.
fn is_living_member(stat: &str, group: Pid) -> bool {
    // The name of a process can contain brackets.
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let mut fields = rest.split(' ');
    let (state, number) = (fields.next(), fields.nth(1));
    let is_member = number.and_then(|number| number.parse().ok()) == Some(group.as_raw_pid());
    is_member && !matches!(state, Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_process_is_not_alive() {
        let group = Pid::from_raw(7).unwrap();
        for (stat, want) in [
            ("8 (sleep) S 1 7 7 0 -1", true),
            ("8 (sleep) Z 1 7 7 0 -1", false),
            ("8 (a) Z 1 7) R 1 7 7 0 -1", true),
            ("7 (sh) S 1 9 9 0 -1", false),
            ("", false),
        ] {
            assert_eq!(is_living_member(stat, group), want, "{stat}");
        }
    }
}
