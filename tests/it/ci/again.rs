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

/// Runs `.ci/test` where cargo runs these binaries; returns its output and the list of flaky tests.
fn run(binaries: &[Binary]) -> (Output, String) {
    let folder = TempDir::new().unwrap();
    let mut text: String =
        binaries.iter().enumerate().map(|(number, it)| report(folder.path(), number, it)).collect();
    let is_failed = |it: &&Binary| !matches!(it, Binary::Ran(failed) if failed.is_empty());
    let failed = binaries.iter().filter(is_failed).count();
    if failed > 0 && !matches!(binaries, [Binary::NotBuilt]) {
        writeln!(text, "error: {failed} target{} failed:", if failed == 1 { "" } else { "s" })
            .unwrap();
    }
    let output = folder.path().join("output");
    fs::write(&output, text).unwrap();
    let code = if failed > 0 { 101 } else { 0 };
    write_script(
        &folder.path().join("cargo"),
        &format!("cat '{}' >&2\nexit {code}", output.display()),
    );
    let list = folder.path().join("flaky");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/test");
    let mut test = Command::new("sh");
    test.args(["-c", r#"PATH="$1:$PATH" exec "$2""#, "sh"]).arg(folder.path()).arg(script);
    let ran = test.env("FLAKY_LIST", &list).output().unwrap();
    (ran, fs::read_to_string(&list).unwrap_or_default())
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
