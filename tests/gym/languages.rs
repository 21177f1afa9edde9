//! Languages of examples/, and the commands of their programs.

use std::path::PathBuf;

use super::handle::Commands;

/// Programs of one language.
#[derive(Clone, Copy)]
pub(crate) struct Language {
    pub(crate) name: &'static str,
    /// True if its worker uses Pull over JSON.
    pub(crate) json: bool,
    /// True if only essential scenarios apply.
    pub(crate) is_essential: bool,
}

/// Every language.
pub(crate) const LANGUAGES: [Language; 8] = [
    Language { name: "rust", json: false, is_essential: false },
    Language { name: "go", json: false, is_essential: false },
    Language { name: "python", json: false, is_essential: false },
    Language { name: "typescript", json: false, is_essential: false },
    Language { name: "java", json: false, is_essential: false },
    Language { name: "ruby", json: false, is_essential: false },
    Language { name: "cpp", json: false, is_essential: false },
    Language { name: "php", json: true, is_essential: true },
];

/// Returns the folder of the examples.
pub(crate) fn examples() -> PathBuf {
    // Another one for a binary that was copied.
    let given = std::env::var_os("RINGQ_EXAMPLES").map(PathBuf::from);
    given.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples"))
}

// === impl Language ===

impl Language {
    pub(crate) fn named(name: &str) -> Result<Language, String> {
        let found = LANGUAGES.into_iter().find(|language| language.name == name);
        let names = || LANGUAGES.map(|language| language.name).join(", ");
        found.ok_or_else(|| format!("there is no language {name:?}, but {}", names()))
    }

    pub(crate) fn commands(self) -> Commands {
        let folder = examples().join(self.name);
        let command = |name: &str| format!("'{}'", folder.join(name).display());
        let (worker, producer) = (command("run-worker"), command("run-producer"));
        Commands { worker, producer, json: self.json }
    }
}
