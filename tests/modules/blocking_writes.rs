//! Standard output and standard error can block for ever, when their reader stops: few places write to them, none of them
//! on a thread that serves, holds leases or answers signals.

use std::path::{Path, PathBuf};

/// Texts that get a handle, each with the files of `src` that may have it, and why a full pipe stops nothing there.
const HANDLES: [(&str, &[(&str, &str)]); 2] = [
    (
        "io::stderr()",
        &[("stderr.rs", "a thread of its own writes, once there is anything to hold up")],
    ),
    (
        "io::stdout()",
        &[
            ("audit/writer.rs", "a thread of its own writes"),
            (
                "cli/output.rs",
                "a command that makes calls writes beside its runtime; an import by `spawn_blocking`",
            ),
            ("cli/work/stdout.rs", "by `spawn_blocking`"),
            ("cli/work/shutdown.rs", "it only watches"),
            ("cli/work/reporter.rs", "it only asks for a terminal"),
            ("cli/enqueue/progress.rs", "it only asks for a terminal"),
        ],
    ),
];

/// Macros that write to them; `print_stdout` and `print_stderr` of clippy find those of the compiler, too.
const MACROS: [&str; 4] = ["println!(", "print!(", "eprintln!(", "eprint!("];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns the files of a folder and those in it.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let within = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries
        .flat_map(within)
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
        .collect()
}

/// Returns the lines of a file without its tests and comments.
fn code(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    // Borrowed descriptors, which answer questions about a terminal.
    lines.map(|line| line.replace("stdio::", "")).collect()
}

#[test]
fn few_places_write_where_a_reader_can_stop_them() {
    let source = source();
    let mut found = Vec::new();
    for path in files(&source) {
        let name = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
        if name.split('/').any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        for (index, line) in code(&path).iter().enumerate() {
            let handle = HANDLES.iter().find(|(handle, allowed)| {
                line.contains(handle) && !allowed.iter().any(|(file, _)| *file == name)
            });
            let banned = handle.map(|(handle, _)| *handle);
            if let Some(text) =
                banned.or_else(|| MACROS.into_iter().find(|text| line.contains(text)))
            {
                found.push(format!("src/{name}:{}: {text}", index + 1));
            }
        }
    }
    assert!(
        found.is_empty(),
        "use the module stderr, cli::output or line_writer, or name the place with its reason:\n{}",
        found.join("\n")
    );
}

#[test]
fn each_allowed_place_exists() {
    for (handle, allowed) in HANDLES {
        for (file, _) in allowed {
            let code = code(&source().join(file));
            assert!(code.iter().any(|line| line.contains(handle)), "{file} has no {handle}");
        }
    }
}
