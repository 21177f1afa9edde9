//! Lua scripts of the Redis store: one `.lua` file per verb, called by its hash. A server that does not have a script
//! (after a restart, failover or flush) receives the script with a repeated call, so no script has to be loaded in
//! advance.
//!
//! A line `--#include name` is replaced by `lib/name.lua`, and a name after `$` by its value in [`super::layout`].
//! The first line lists the flags of the script: Redis 7 expects them after a shebang, which earlier versions reject.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    self, Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value,
};

use tokio::time::Instant;

use crate::domain::Time;

use super::layout;

/// Source text of a script.
pub(super) struct ScriptSource {
    /// Name of the verb.
    pub(super) name: &'static str,
    pub(super) source: &'static str,
}

macro_rules! scripts {
    ($($constant:ident = $name:literal,)*) => {
        /// Script to call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Verb { $($constant,)* }

        /// All scripts, in the order of [`Verb`].
        pub(super) const ALL: &[ScriptSource] = &[$(
            ScriptSource { name: $name, source: include_str!(concat!($name, ".lua")) },
        )*];
    };
}

scripts! {
    CancelClaim = "cancel_claim",
    ChangeStream = "change_stream",
    Claim = "claim",
    Commit = "commit",
    CommitGrowing = "commit_growing",
    Documents = "documents",
    Enqueue = "enqueue",
    Explain = "explain",
    Extend = "extend",
    ForgetDocuments = "forget_documents",
    Get = "get",
    Groups = "groups",
    Heartbeat = "heartbeat",
    Ids = "ids",
    Info = "info",
    LastKeptUntil = "last_kept_until",
    List = "list",
    Load = "load",
    MakeUndelayedDue = "make_undelayed_due",
    OldestWaiting = "oldest_waiting",
    Open = "open",
    Prune = "prune",
    PruneTopics = "prune_topics",
    Reap = "reap",
    Running = "running",
    SetState = "set_state",
    Settle = "settle",
    Stats = "stats",
    Topics = "topics",
    WriteDocuments = "write_documents",
}

/// Files that scripts include, by name.
pub(super) const SOURCES: [(&str, &str); 18] = [
    ("clock", include_str!("lib/clock.lua")),
    ("outage", include_str!("lib/outage.lua")),
    ("lease_events", include_str!("lib/lease_events.lua")),
    ("ended_ids", include_str!("lib/ended_ids.lua")),
    ("id_history", include_str!("lib/id_history.lua")),
    ("ready_list", include_str!("lib/ready_list.lua")),
    ("list_cursor", include_str!("lib/list_cursor.lua")),
    ("record", include_str!("lib/record.lua")),
    ("commit", include_str!("lib/commit.lua")),
    ("topic_end", include_str!("lib/topic_end.lua")),
    ("claim_general", include_str!("lib/claim_general.lua")),
    ("lanes", include_str!("lib/lanes.lua")),
    ("claim_lanes", include_str!("lib/claim_lanes.lua")),
    ("lease_end", include_str!("lib/lease_end.lua")),
    ("order_of_mark", include_str!("lib/order_of_mark.lua")),
    ("waiting_count", include_str!("lib/waiting_count.lua")),
    ("document_horizon", include_str!("lib/document_horizon.lua")),
    ("count_stored", include_str!("lib/count_stored.lua")),
];

/// Commands of scripts that a login may lack: what needs them does without, and the shard stays in use.
const OPTIONAL: [&str; 1] = ["MEMORY"];

/// Redis commands that scripts call and cannot do without.
pub(super) fn commands() -> impl Iterator<Item = &'static str> {
    let codes = ALL.iter().map(|script| script.source).chain(SOURCES.map(|(_, code)| code));
    let names = codes.flat_map(|code| code.split("call('").skip(1));
    let names = names.filter_map(|rest| rest.split('\'').next());
    let mut names: Vec<_> = names.filter(|name| !OPTIONAL.contains(name)).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

const FLAGS: &str = "-- flags:";
const INCLUDE: &str = "--#include ";
/// First major version of Redis that accepts a shebang.
const SHEBANG_SINCE: u32 = 7;

/// All scripts of one shard, in the variant for the version of its Redis.
pub(super) struct Scripts {
    prefix: String,
    /// Key that identifies the caller, for scripts that notify other replicas.
    caller: Vec<u8>,
    shebang: AtomicBool,
}

/// Variants of all scripts, shared by all shards: without a shebang and with one.
static VARIANTS: LazyLock<[ScriptVariant; 2]> = LazyLock::new(|| {
    let bodies: Vec<_> = ALL.iter().map(|script| resolved_body(script.source)).collect();
    [SHEBANG_SINCE - 1, SHEBANG_SINCE].map(|major| ScriptVariant::new(&bodies, major))
});

/// All scripts for one range of Redis versions.
struct ScriptVariant {
    scripts: Vec<redis::Script>,
    codes: Vec<String>,
}

/// A call of a script, with its arguments.
pub(super) struct ScriptCall {
    verb: Verb,
    shebang: bool,
    command: Cmd,
    /// End of the execution window, by the clock of this process.
    window_end: Option<Instant>,
}

/// Time argument of a call, its first argument (`lib/clock.lua`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExecutionTime {
    /// Redis executes the call whenever it arrives.
    Always,
    /// Redis executes the call until this time of its clock.
    Until(Time),
    /// A test drives the clock, which shows this time.
    TestClock(Time),
}

/// Number of arguments that each call has: command, script hash, keys, time.
const ARGS_FIXED: usize = 8;
/// Usual number of bytes of these arguments.
const BYTES_FIXED: usize = 128;

// === impl Scripts ===

impl Scripts {
    /// Returns the scripts. `prefix`: prefix of all keys; `caller`: see [`super::keys::caller`].
    pub(super) fn new(prefix: String, caller: Vec<u8>) -> Scripts {
        Scripts { prefix, caller, shebang: AtomicBool::new(true) }
    }

    /// Selects the script variant for this major version of Redis.
    pub(super) fn set_major_version(&self, major: u32) {
        self.shebang.store(major >= SHEBANG_SINCE, Ordering::Relaxed);
    }

    /// Starts a call of `verb`. `room`: expected number of arguments and of their bytes.
    pub(super) fn call(&self, verb: Verb, at: ExecutionTime, room: (usize, usize)) -> ScriptCall {
        debug_assert!(
            at != ExecutionTime::Always || !verb.needs_window(),
            "{verb:?} without a window"
        );
        let shebang = self.shebang.load(Ordering::Relaxed);
        let mut command = Cmd::with_capacity(ARGS_FIXED + room.0, BYTES_FIXED + room.1);
        command.arg("EVALSHA").arg(self.hash(verb, shebang));
        if verb.publishes_lease_events() {
            command.arg(2).arg(&self.prefix).arg(&self.caller);
        } else {
            command.arg(1).arg(&self.prefix);
        }
        at.add_to(&mut command);
        ScriptCall { verb, shebang, command, window_end: None }
    }

    fn hash(&self, verb: Verb, shebang: bool) -> &str {
        VARIANTS[usize::from(shebang)].scripts[verb as usize].get_hash()
    }

    /// Returns the call for the current version of Redis: it was built for another version, or before the version was
    /// read.
    fn command_for_current(&self, call: &ScriptCall, shebang: bool) -> Cmd {
        call.with_command("EVALSHA", self.hash(call.verb, shebang))
    }

    /// Runs a call. A script that the server does not have was not executed, so its text is sent with EVAL, which
    /// also stores it on the server. EVAL is one command; a load followed by a call could fail, because the server
    /// may drop the script in between.
    pub(super) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        call: &ScriptCall,
    ) -> Result<Value, RedisError> {
        let shebang = self.shebang.load(Ordering::Relaxed);
        let suited = (call.shebang != shebang).then(|| self.command_for_current(call, shebang));
        let command = suited.as_ref().unwrap_or(&call.command);
        let answer = command.query_async(connection).await;
        match answer {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                tracing::debug!(
                    script = ALL[call.verb as usize].name,
                    "redis does not have the script; sending its text with EVAL"
                );
                let code = &VARIANTS[usize::from(shebang)].codes[call.verb as usize];
                call.with_command("EVAL", code).query_async(connection).await
            }
            answer => answer,
        }
    }
}

// === impl ScriptVariant ===

impl ScriptVariant {
    fn new(bodies: &[String], major: u32) -> ScriptVariant {
        let codes =
            ALL.iter().zip(bodies).map(|(script, body)| script_header(script.source, major) + body);
        let codes: Vec<_> = codes.collect();
        let scripts = codes.iter().map(|code| redis::Script::new(code)).collect();
        ScriptVariant { scripts, codes }
    }
}

// === impl ScriptCall ===

impl ScriptCall {
    /// Returns the call with another command and another script argument.
    fn with_command(&self, command: &str, script: &str) -> Cmd {
        let mut renamed = redis::cmd(command);
        renamed.arg(script);
        for arg in self.command.args_iter().skip(2) {
            match arg {
                Arg::Simple(bytes) => renamed.arg(bytes),
                _ => continue,
            };
        }
        renamed
    }

    /// Adds an argument.
    pub(super) fn arg(&mut self, value: impl ToRedisArgs) -> &mut ScriptCall {
        self.command.arg(value);
        self
    }

    /// Verb of the call.
    pub(super) fn verb(&self) -> Verb {
        self.verb
    }

    /// Returns the call with an execution window that ends at `last`, by the clock of this process.
    pub(super) fn with_window_end(self, last: Instant) -> ScriptCall {
        ScriptCall { window_end: Some(last), ..self }
    }

    /// End of the execution window, by the clock of this process; after it Redis does not execute the call. `None`:
    /// no window.
    pub(super) fn window_end(&self) -> Option<Instant> {
        self.window_end
    }

    /// Returns the call with another latest execution time of Redis's clock.
    pub(super) fn with_execution_end(&self, until: Time) -> ScriptCall {
        let time = if self.verb.publishes_lease_events() { 5 } else { 4 };
        let mut command = Cmd::new();
        for (index, arg) in self.command.args_iter().enumerate() {
            match arg {
                _ if index == time => ExecutionTime::Until(until).add_to(&mut command),
                Arg::Simple(bytes) => drop(command.arg(bytes)),
                _ => {}
            }
        }
        ScriptCall { verb: self.verb, shebang: self.shebang, command, window_end: self.window_end }
    }
}

// === impl ExecutionTime ===

impl ExecutionTime {
    fn add_to(self, command: &mut Cmd) {
        match self {
            ExecutionTime::Always => command.arg(""),
            ExecutionTime::Until(latest) => command.arg(format!("<{}", latest.0)),
            ExecutionTime::TestClock(now) => command.arg(now.0),
        };
    }
}

// === impl Verb ===

impl Verb {
    /// Returns whether the script changes no stored data: a failed call has no unknown outcome.
    pub(super) fn only_reads(self) -> bool {
        use Verb::{
            Documents, Explain, Get, Groups, Ids, Info, LastKeptUntil, List, Load, Prune, Reap,
            Running, Stats, Topics,
        };
        matches!(
            self,
            Documents
                | Explain
                | Get
                | Groups
                | Ids
                | Info
                | LastKeptUntil
                | List
                | Load
                | Prune
                | Reap
                | Running
                | Stats
                | Topics
        )
    }

    /// Returns whether the script needs an execution window (`write_window.rs`): it changes visible data and no lease
    /// token guards it. Other writes are guarded by a token (settle, tie, and claim by its nonce), or change nothing
    /// when they are executed again. Commits are guarded by versions; those without a token get a window, too, from
    /// `optimistic_commit.rs`. A token does not distinguish an Extend from the one that followed it.
    fn needs_window(self) -> bool {
        use Verb::{
            CancelClaim, ChangeStream, Claim, Commit, CommitGrowing, Documents, Enqueue, Explain,
            Extend, ForgetDocuments, Get, Groups, Heartbeat, Ids, Info, LastKeptUntil, List, Load,
            MakeUndelayedDue, OldestWaiting, Open, Prune, PruneTopics, Reap, Running, SetState,
            Settle, Stats, Topics, WriteDocuments,
        };
        // All verbs are listed, so that a new verb does not compile without a decision.
        match self {
            Heartbeat | Enqueue | Extend | ForgetDocuments | SetState | WriteDocuments => true,
            Claim | Commit | CommitGrowing | ChangeStream | Settle | CancelClaim | Documents
            | MakeUndelayedDue | OldestWaiting | Open | Prune | PruneTopics | Get | Groups
            | Ids | Info | Explain | LastKeptUntil | List | Load | Reap | Running | Stats
            | Topics => false,
        }
    }

    /// Returns whether the reply begins with the time of Redis's clock.
    pub(super) fn answers_time(self) -> bool {
        use Verb::{
            ChangeStream, Commit, CommitGrowing, Enqueue, Extend, Heartbeat, Load, SetState,
        };
        matches!(
            self,
            Heartbeat | Commit | Enqueue | Extend | Load | CommitGrowing | SetState | ChangeStream
        )
    }

    /// Returns whether the script ends or changes leases and so notifies their owners (`lib/lease_events.lua`).
    fn publishes_lease_events(self) -> bool {
        matches!(
            self,
            Verb::ChangeStream | Verb::Commit | Verb::Extend | Verb::CommitGrowing | Verb::Settle
        )
    }
}

/// Returns the beginning of the script text for a server of this major version.
fn script_header(source: &str, major: u32) -> String {
    let first = source.lines().next().unwrap_or_default();
    let flags = first.strip_prefix(FLAGS).unwrap_or_default().trim();
    match (major >= SHEBANG_SINCE, flags) {
        (true, "") => "#!lua\n".to_owned(),
        (true, flags) => format!("#!lua flags={flags}\n"),
        // Before version 7 a script whose first write needs no memory may execute all others, too.
        (false, "allow-oom") => "redis.call('HDEL', KEYS[1], '')\n".to_owned(),
        (false, _) => String::new(),
    }
}

/// Returns the rest of the script text, with includes and names resolved.
fn resolved_body(source: &str) -> String {
    let mut code = String::new();
    include_into(&mut code, source.split_once('\n').map_or("", |(_, rest)| rest));
    layout::resolve(&code)
}

/// Appends `source` to `code`, with its includes.
fn include_into(code: &mut String, source: &str) {
    for line in source.lines() {
        match line.trim_start().strip_prefix(INCLUDE) {
            Some(name) => match SOURCES.iter().find(|(known, _)| *known == name) {
                Some((_, source)) => include_into(code, source),
                None => code.push_str(&format!("error('unknown include {name}')\n")),
            },
            None => code.extend([line, "\n"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_names_its_flags_and_its_contract() {
        for ScriptSource { name, source } in ALL {
            assert!(source.starts_with(FLAGS), "{name}: no flags");
            assert!(source.contains(&format!("\n-- {name}: ")), "{name}: no description");
            assert!(source.contains("\n-- Reply: "), "{name}: no reply description");
            let code = resolved_body(source);
            assert!(!code.contains(INCLUDE), "{name}: an include is left");
            assert!(!code.contains("unknown include"), "{name}: a wrong include");
            let unknown = code.lines().find(|line| line.contains('$'));
            assert_eq!(unknown, None, "{name}: unknown name");
        }
    }

    /// Fields that decide what becomes of a job or of its lease.
    const DECIDING: [&str; 5] = ["keep", "expire", "own_lease", "grace", "duration"];

    /// Returns whether a script names such a field: `$record.keep`, `$record[expire,own_lease]`, `lease.grace`.
    fn reads_deciding_field(source: &str) -> bool {
        let code = source.lines().filter(|line| !line.trim_start().starts_with("--"));
        let is_name = |c: char| c.is_ascii_lowercase() || "_.[,]".contains(c);
        let names = code.flat_map(|line| line.split(move |c| !is_name(c)));
        let names = names.filter(|name| name.contains(['.', '[']));
        let mut fields = names.flat_map(|name| name.split(['.', '[', ',', ']']).skip(1));
        fields.any(|field| DECIDING.contains(&field))
    }

    #[test]
    fn only_the_fast_paths_of_the_architecture_read_what_decides_about_a_job() {
        let page = include_str!("../../../docs/architecture.md");
        let (_, section) = page.split_once("\n## Fast paths\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let column = section.lines().filter_map(|row| row.strip_prefix("| `")?.split(" | ").next());
        let mut listed: Vec<&str> =
            column.flat_map(|scripts| scripts.trim_end_matches('`').split("`, `")).collect();
        let all = ALL.iter().map(|script| (script.name, script.source)).chain(SOURCES);
        let reading = all.filter(|(_, source)| reads_deciding_field(source));
        let mut reading: Vec<&str> = reading.map(|(name, _)| name).collect();
        listed.sort_unstable();
        reading.sort_unstable();
        assert_eq!(reading, listed, "the table has other scripts");
    }

    #[test]
    fn scripts_with_lease_events_get_the_caller() {
        let scripts = Scripts::new("P".into(), b"P1234".to_vec());
        for (verb, name) in [
            (Verb::Commit, "commit"),
            (Verb::Extend, "extend"),
            (Verb::Settle, "settle"),
            (Verb::Claim, "claim"),
            (Verb::CancelClaim, "cancel_claim"),
        ] {
            let code = resolved_body(ALL[verb as usize].source);
            assert_eq!(ALL[verb as usize].name, name);
            assert_eq!(
                verb.publishes_lease_events(),
                code.contains("local function add_lease_event("),
                "{name}"
            );
            assert_eq!(
                verb.publishes_lease_events(),
                code.contains("publish_lease_events()"),
                "{name}"
            );
            let packed = scripts
                .call(verb, ExecutionTime::TestClock(Time(7)), (0, 0))
                .command
                .get_packed_command();
            let called = packed.windows(5).any(|bytes| bytes == b"P1234");
            assert_eq!(verb.publishes_lease_events(), called, "{name}");
        }
    }

    #[test]
    fn only_what_may_grow_the_store_stops_when_it_is_full() {
        let flags = |source: &str| source.lines().next().unwrap().to_owned();
        let refused: Vec<_> =
            ALL.iter().filter(|s| flags(s.source) == "-- flags:").map(|s| s.name).collect();
        assert_eq!(refused, ["commit_growing", "enqueue"]);
    }

    #[test]
    fn call_is_adapted_to_the_redis_version() {
        let scripts = Scripts::new("p".into(), b"p1234".to_vec());
        let mut early = scripts.call(Verb::Get, ExecutionTime::TestClock(Time(7)), (0, 0));
        early.arg("a").arg(2);
        scripts.set_major_version(6);
        let mut late = scripts.call(Verb::Get, ExecutionTime::TestClock(Time(7)), (0, 0));
        late.arg("a").arg(2);
        let packed = |command: &Cmd| command.get_packed_command();
        assert_ne!(packed(&early.command), packed(&late.command));
        assert_eq!(packed(&scripts.command_for_current(&early, false)), packed(&late.command));
    }

    #[test]
    fn shebang_only_since_redis_7() {
        assert_eq!(script_header("-- flags: allow-oom\nreturn 1\n", 7), "#!lua flags=allow-oom\n");
        assert_eq!(script_header("-- flags:\nreturn 1\n", 8), "#!lua\n");
        assert!(!script_header("-- flags: allow-oom\nreturn 1\n", 6).contains("#!"));
        assert_eq!(resolved_body("-- flags: allow-oom\nreturn 1\n"), "return 1\n");
    }
}
