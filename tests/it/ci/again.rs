//! `.ci/test` runs failed tests once more: with a cargo and test binaries that only print.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::write_script;

/// Result of a test binary.
enum Binary {
    /// Failed tests, each with whether it passes alone.
    Ran(Vec<(String, bool)>),
    /// Process that a signal has ended.
    Died,
    /// Doc tests, of which one fails.
    FailedDocs,
    /// Failed build: no binary ran.
    NotBuilt,
}

/// Returns what cargo and libtest print, and writes the binary that is run again.
fn report(folder: &Path, number: usize, binary: &Binary) -> String {
    let path = folder.join(format!("it-{number}"));
    let running =
        format!("     Running tests/it{number}.rs ({})\n\nrunning 9 tests\n", path.display());
    match binary {
        Binary::NotBuilt => "error: could not compile `x` (lib test) due to 1 previous error\n".into(),
        Binary::FailedDocs => "   Doc-tests x\n\nfailures:\n    src/lib.rs - x (line 1)\n\n\
            test result: FAILED. 0 passed; 1 failed; 0 ignored\nerror: doctest failed, to rerun pass `--doc`\n".into(),
        Binary::Died => {
            format!("{running}error: test failed, to rerun pass `--test it{number}`\n\nCaused by:\n  (signal: 6, SIGABRT)\n")
        }
        Binary::Ran(failed) if failed.is_empty() => {
            format!("{running}\ntest result: ok. 9 passed; 0 failed; 0 ignored\n\n")
        }
        Binary::Ran(failed) => {
            let mut text = format!("{running}\nfailures:\n\n");
            for (name, _) in failed {
                // What a test prints may look like a report.
                write!(text, "---- {name} stdout ----\nfailures:\n    not::a_test\n\n").unwrap();
            }
            text.push_str("\nfailures:\n");
            failed.iter().for_each(|(name, _)| writeln!(text, "    {name}").unwrap());
            let passes: String = failed.iter().filter(|(_, passes)| *passes).map(|(name, _)| {
                format!("[ \"$1 $2 $3 $4\" = '--exact {name} --test-threads 1' ] && echo 'test result: ok. 1 passed; 0 failed' && exit\n")
            }).collect();
            // libtest succeeds where no test has the name.
            write_script(&path, &format!("{passes}\necho 'test result: ok. 0 passed; 0 failed'"));
            text + "\ntest result: FAILED. 1 passed; 9 failed; 0 ignored\n\nerror: test failed, to rerun pass `--test x`\n"
        }
    }
}

/// Returns the lines of a shell by which cargo runs these binaries; `first`: number of the first one.
fn cargo_runs(folder: &Path, first: usize, binaries: &[Binary]) -> String {
    let reports = binaries.iter().enumerate().map(|(n, it)| report(folder, first + n, it));
    let mut text: String = reports.collect();
    let is_failed = |it: &&Binary| !matches!(it, Binary::Ran(failed) if failed.is_empty());
    let failed = binaries.iter().filter(is_failed).count();
    if failed > 0 && !matches!(binaries, [Binary::NotBuilt]) {
        writeln!(text, "error: {failed} target{} failed:", if failed == 1 { "" } else { "s" })
            .unwrap();
    }
    let output = folder.join(format!("output-{first}"));
    fs::write(&output, text).unwrap();
    let code = if failed > 0 { 101 } else { 0 };
    format!("cat '{}' >&2\nexit {code}", output.display())
}

/// Runs `.ci/test` where cargo is this script; returns its output and the list of flaky tests.
fn run_with(folder: &Path, cargo: &str, arguments: &[&str]) -> (Output, String) {
    write_script(&folder.join("cargo"), cargo);
    let list = folder.join("flaky");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/test");
    let mut test = Command::new("sh");
    test.args(["-c", r#"PATH="$1:$PATH"; shift; exec "$@""#, "sh"]).arg(folder).arg(script);
    let ran = test.args(arguments).env("FLAKY_LIST", &list).output().unwrap();
    (ran, fs::read_to_string(&list).unwrap_or_default())
}

/// Runs `.ci/test` with an argument, where cargo runs these binaries.
fn run(binaries: &[Binary]) -> (Output, String) {
    let folder = TempDir::new().unwrap();
    let cargo = cargo_runs(folder.path(), 0, binaries);
    run_with(folder.path(), &cargo, &["--tests"])
}

/// Runs `.ci/test` for all tests, where cargo does this for `it`, for the doc tests and for the others; `faults` pass.
fn run_all(folder: &Path, [it, docs, others]: [&str; 3]) -> (Output, String) {
    let cargo = format!(
        "case \"$*\" in\n*--no-run* | *faults*) exit 0;;\n*'--test it'*) {it};;\n*--doc*) {docs};;\n\
         *) {others};;\nesac"
    );
    run_with(folder, &cargo, &[])
}

fn tests(count: usize, passes: bool) -> Vec<(String, bool)> {
    (0..count).map(|number| (format!("e2e::case_{number}::of::{passes}"), passes)).collect()
}

fn flaky_lines(count: usize) -> String {
    tests(count, true).iter().map(|(name, _)| format!("FLAKY {name}\n")).collect()
}

#[test]
fn a_test_that_passes_alone_is_named_and_fails_nothing() {
    for count in [0, 1, 2, 20] {
        let (ran, list) = run(&[Binary::Ran(vec![]), Binary::Ran(tests(count, true))]);
        let output = String::from_utf8(ran.stdout).unwrap();
        assert!(ran.status.success(), "{count}: {output}");
        assert!(output.contains("test result: ok. 9 passed"), "cargo's lines stay: {output}");
        assert_eq!(list, flaky_lines(count));
        assert!(output.ends_with(&list), "{output}");
    }
}

#[test]
fn tests_of_several_binaries_run_on_their_own() {
    let (ran, list) =
        run(&[Binary::Ran(tests(1, true)), Binary::Ran(vec![]), Binary::Ran(tests(2, true))]);
    assert!(ran.status.success());
    assert_eq!(list, flaky_lines(1) + &flaky_lines(2));
}

#[test]
fn what_is_no_accident_fails_with_the_code_of_cargo() {
    let flaky = || Binary::Ran(tests(1, true));
    let cases: [(&str, Vec<Binary>, &str); 6] = [
        (
            "fails again",
            vec![Binary::Ran([tests(1, true), tests(1, false)].concat())],
            "FAILED TWICE e2e::case_0::of::false",
        ),
        (
            "in another binary",
            vec![flaky(), Binary::Ran(tests(2, false))],
            "FAILED TWICE e2e::case_1::of::false",
        ),
        ("doc tests", vec![flaky(), Binary::FailedDocs], "nothing is run again"),
        ("died", vec![flaky(), Binary::Died], "nothing is run again"),
        ("not built", vec![Binary::NotBuilt], "nothing is run again"),
        ("too many", vec![Binary::Ran(tests(21, true))], "none is run again"),
    ];
    for (case, binaries, expected) in cases {
        let (ran, _) = run(&binaries);
        let output = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(ran.status.code(), Some(101), "{case}: {output}");
        assert!(output.contains(expected), "{case}: {output}");
    }
}

#[test]
fn all_tests_run_in_two_parts_and_a_failure_of_either_counts() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let flaky = |first| cargo_runs(folder, first, &[Binary::Ran(tests(1, true))]);
    let (it, others) = (flaky(0), flaky(1));
    let (ran, list) = run_all(folder, [&it, "exit 0", &others]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(list, flaky_lines(1) + &flaky_lines(1));

    let broken = cargo_runs(folder, 2, &[Binary::Ran(tests(2, false))]);
    let docs = cargo_runs(folder, 3, &[Binary::FailedDocs]);
    let cases: [([&str; 3], i32, &str); 5] = [
        ([&it, "exit 0", &broken], 101, "FAILED TWICE e2e::case_1::of::false"),
        ([&broken, "exit 0", &others], 101, "FAILED TWICE e2e::case_1::of::false"),
        ([&it, &docs, &others], 101, "nothing is run again"),
        // What a signal ended has no list of its failed tests.
        ([&it, "exit 0", "exit 137"], 137, "nothing is run again"),
        (["exit 137", "exit 0", &others], 137, "nothing is run again"),
    ];
    for (cargo, code, expected) in cases {
        let (ran, _) = run_all(folder, cargo);
        let output = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(ran.status.code(), Some(code), "{cargo:?}: {output}");
        assert!(output.contains(expected), "{cargo:?}: {output}");
    }
    let (ran, _) = run_with(folder, "echo \"$@\"; exit 101", &[]);
    assert_eq!(ran.status.code(), Some(101));
    let output = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(output.lines().count(), 1, "nothing runs that is not built: {output}");
}

/// `.ci/test` names each test binary.
#[test]
fn no_test_binary_is_forgotten() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(root.join(".ci/test")).unwrap();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let left_out = |name: &str| {
        let target = |it: &&toml::Value| it["name"].as_str() == Some(name);
        let target = manifest["test"].as_array().unwrap().iter().find(target);
        target.and_then(|it| it.get("test")).and_then(toml::Value::as_bool) == Some(false)
    };
    let mut named = 0;
    for folder in fs::read_dir(root.join("tests")).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        if folder.join("main.rs").exists() && !left_out(name) {
            assert!(script.contains(&format!("--test {name}")), "{name}");
            named += 1;
        }
    }
    assert!(named >= 3, "{named}");
}
