//! `.ci/long` runs the long suites: in a repository of its own, with a make whose suites are scripts of a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A make that knows no variables of the caller, notes each suite in `ran`, and runs its script if it has one.
const MAKE: &str = r#"
[ -z "$ARGS$MAKEFLAGS" ] || exit 3
echo "$2" >>ran
[ ! -f "suites/$2" ] || . "./suites/$2"
"#;

/// Repository with one commit and `.ci/long`.
struct Repository(TempDir);

impl Repository {
    fn new() -> Repository {
        let repository = Repository(TempDir::new().unwrap());
        for folder in [".ci", "bin", "suites"] {
            fs::create_dir(repository.path(folder)).unwrap();
        }
        fs::copy(repository_file(".ci/long"), repository.path(".ci/long")).unwrap();
        super::write_script(&repository.path("bin/make"), MAKE);
        fs::write(repository.path("file"), "").unwrap();
        repository.git(&["init", "--quiet"]);
        repository.git(&["add", "file"]);
        repository.commit();
        repository
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn git(&self, args: &[&str]) {
        let mut git = Command::new("git");
        let user =
            ["-c", "user.name=it", "-c", "user.email=it@localhost", "-c", "commit.gpgSign=false"];
        let git = git.arg("-C").arg(self.0.path()).args(user).args(args);
        assert!(git.status().unwrap().success(), "{args:?}");
    }

    fn commit(&self) {
        self.git(&["commit", "--quiet", "--all", "--allow-empty", "--message", "a change"]);
    }

    /// Sets what a suite does.
    fn suite(&self, name: &str, script: &str) {
        fs::write(self.path("suites").join(name), script).unwrap();
    }

    /// Runs `.ci/long` with these words.
    fn long(&self, args: &str) -> Output {
        let mut long = Command::new("sh");
        // A test that a script has started in the background ignores Ctrl-C.
        let command = r#"PATH="$PWD/bin:$PATH" exec env --default-signal=INT .ci/long "$@""#;
        long.args(["-c", command, "sh"]);
        long.args(args.split_whitespace()).current_dir(self.0.path());
        // As `make long ARGS=...` leaves them.
        long.env("ARGS", args).env("MAKEFLAGS", " -- ARGS=x").output().unwrap()
    }

    /// Runs `.ci/long --wait` with these words; returns its exit code.
    fn wait(&self, args: &str) -> Option<i32> {
        self.long(&format!("--wait {args}")).status.code()
    }

    /// Returns the suites that ran since the last call, in their order.
    fn ran(&self) -> String {
        let ran = fs::read_to_string(self.path("ran")).unwrap_or_default();
        fs::write(self.path("ran"), "").unwrap();
        ran.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns the row of a suite in the table, without its time and its commit.
    fn row(&self, suite: &str) -> String {
        let table = String::from_utf8(self.long("--status").stdout).unwrap();
        let row = table.lines().find(|line| line.split_whitespace().next() == Some(suite)).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        [&words[1..2], words.get(4..).unwrap_or_default()].concat().join(" ")
    }

    /// Waits until no run has the lock.
    fn ended(&self) {
        let lock = self.path("target/long/lock");
        assert!(Command::new("flock").arg(lock).arg("true").status().unwrap().success());
    }
}

fn repository_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns the suites of the script, in their order.
fn suites() -> Vec<String> {
    let script = fs::read_to_string(repository_file(".ci/long")).unwrap();
    let (_, rest) = script.split_once("\nsuites=(").unwrap();
    rest.split_once(')').unwrap().0.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn every_suite_is_a_target_and_every_long_target_a_suite() {
    let makefile = fs::read_to_string(repository_file("Makefile")).unwrap();
    for suite in suites() {
        assert!(makefile.contains(&format!("\n{suite}:")), "{suite} is no target");
    }
    let page = fs::read_to_string(repository_file("CONTRIBUTING.md")).unwrap();
    let (_, rest) = page.split_once("\nThe long suites").unwrap();
    let (table, _) = rest.split_once("\n## ").unwrap();
    let name = |row: &str| Some(row.strip_prefix("| `make ")?.split_once('`')?.0.to_owned());
    let mut rows: Vec<String> = table.lines().filter_map(name).collect();
    let mut suites = suites();
    rows.sort();
    suites.sort();
    assert_eq!(rows, suites);
}

#[test]
fn without_a_name_all_suites_run() {
    let repository = Repository::new();
    repository.suite("trace", "exit 2");
    assert_eq!(repository.row("trace"), "-");
    assert_eq!(repository.wait(""), Some(1));
    assert_eq!(repository.ran(), suites().join(" "), "one that fails stops nothing");
    for suite in suites() {
        let result = if suite == "trace" { "failed" } else { "passed" };
        assert_eq!(repository.row(&suite), result, "{suite}");
    }
}

#[test]
fn names_choose_suites_whose_results_are_replaced() {
    let repository = Repository::new();
    repository.suite("chart", "exit 2");
    assert_eq!(repository.wait("trace"), Some(0));
    // In the order of the script.
    assert_eq!(repository.wait("chart kube"), Some(1));
    assert_eq!(repository.ran(), "trace kube chart");
    assert_eq!(repository.row("trace"), "passed", "it stays");
    assert_eq!(repository.wait("kube"), Some(0), "the other result is that of an earlier run");
    assert_eq!(repository.ran(), "kube");
    repository.suite("chart", "");
    assert_eq!(repository.wait("chart"), Some(0));
    assert_eq!(repository.row("chart"), "passed");
    for words in ["chart chat", "--resumed"] {
        assert_eq!(repository.wait(words), Some(2), "{words}");
    }
    assert_eq!(repository.ran(), "chart", "with a wrong word nothing runs");
}

#[test]
fn a_result_has_the_line_that_explains_it() {
    let repository = Repository::new();
    for (script, row) in [
        ("echo a; echo '1 passed, 0 failed, 0 skipped'", "passed"),
        ("echo 'skipped_count: 1'; echo 'a skipped: b'", "passed"),
        (
            "echo 'check-chart: skipped: all: no helm'; echo b",
            "skipped check-chart: skipped: all: no helm",
        ),
        ("echo 'test a::b ... skipped: no root'; echo ok", "skipped skipped: no root"),
        (
            "echo 'skipped from-sqs: no go'; echo 'SKIPPED: c'",
            "skipped skipped from-sqs: no go (and 1 more)",
        ),
        ("echo a; echo b; echo; echo 'make: *** [c] Error 1'; exit 2", "failed b"),
        ("echo 'FAILED: a'; echo 'skipped: b'; exit 2", "failed FAILED: a"),
        ("exit 2", "failed"),
    ] {
        repository.suite("chart", script);
        repository.wait("chart");
        assert_eq!(repository.row("chart"), row, "{script}");
    }
    let log = fs::read_to_string(repository.path("target/long/chart.log")).unwrap();
    assert_eq!(log, "", "the output of the last run");
}

#[test]
fn resume_runs_what_has_no_result() {
    let repository = Repository::new();
    let [first, second, third, ..] = &suites()[..] else { panic!("fewer suites") };
    repository.suite(first, "exit 2");
    // Its parent is the script.
    repository.suite(third, "kill -9 $PPID");
    assert_eq!(repository.wait(""), None);
    assert_eq!(repository.ran(), [&first[..], second, third].join(" "));
    let rows = || [first, second, third].map(|suite| repository.row(suite));
    assert_eq!(rows(), ["failed", "passed", "interrupted"]);
    repository.suite(third, "");
    assert_eq!(repository.wait("--resume"), Some(1), "one of before has failed");
    assert_eq!(repository.ran(), suites()[2..].join(" "));
    assert_eq!(rows(), ["failed", "passed", "passed"]);
    assert_eq!(repository.wait("--resume"), Some(1));
    assert_eq!(repository.ran(), "", "each has a result");
}

#[test]
fn results_belong_to_a_commit() {
    let repository = Repository::new();
    repository.wait("chart kube");
    repository.commit();
    repository.wait("--resume --any-commit chart trace");
    assert_eq!(repository.ran(), "kube chart trace");
    repository.wait("--resume chart trace");
    assert_eq!(repository.ran(), "chart");
    assert_eq!(repository.row("kube"), "-", "a result of another commit is removed");
    // What is not committed counts, too.
    fs::write(repository.path("file"), "one").unwrap();
    repository.wait("--resume chart");
    fs::write(repository.path("file"), "two").unwrap();
    repository.wait("--resume chart");
    repository.wait("--resume chart");
    assert_eq!(repository.ran(), "chart chart");
    // The result of a tree that changed meanwhile is one of no commit, even if the change is undone.
    repository.suite("chart", "echo three >file");
    repository.wait("chart");
    fs::write(repository.path("file"), "two").unwrap();
    repository.suite("chart", "");
    repository.wait("--resume chart");
    assert_eq!(repository.ran(), "chart chart");
}

#[test]
fn a_second_run_is_refused_while_one_is_in_the_background() {
    let repository = Repository::new();
    let pipes = ["begun", "go"].map(|name| repository.path(name));
    assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
    let [begun, go] = pipes;
    repository.suite("chart", "echo >begun; read -r word <go");
    // Ignored signals are inherited for good: a suite could not test Ctrl-C.
    repository.suite("trace", "kill -INT $$");
    assert!(repository.long("chart trace").status.success());
    let mut wait = Command::new("timeout");
    assert!(wait.args(["60", "cat"]).arg(begun).status().unwrap().success());
    for args in ["", "kube", "--resume", "--wait"] {
        let refused = repository.long(args);
        assert_eq!(refused.status.code(), Some(1), "{args}");
        assert!(String::from_utf8(refused.stderr).unwrap().contains("a run is under way"));
    }
    let table = String::from_utf8(repository.long("--status").stdout).unwrap();
    assert!(table.contains("\nchart        running"), "{table}");
    fs::write(go, "go\n").unwrap();
    repository.ended();
    assert_eq!(repository.ran(), "trace chart");
    assert_eq!(["chart", "trace"].map(|suite| repository.row(suite)), ["passed", "failed"]);
    assert_eq!(repository.wait("kube"), Some(0));
}
