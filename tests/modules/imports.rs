//! Reads the modules of the library, and the imports of each.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, Meta, UseTree, VisRestricted};

/// A file of the library, by its path in the crate: `store::redis::link`.
pub(crate) struct Module {
    pub(crate) name: String,
    file: PathBuf,
    imports: Vec<Import>,
}

/// An import of one module by another one.
pub(crate) struct Import {
    /// The imported module.
    pub(crate) of: String,
    /// The path as written, from the crate's root on.
    what: String,
    file: PathBuf,
}

impl Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.strip_prefix(root()).unwrap_or(&self.file);
        write!(f, "{} imports crate::{}", file.display(), self.what)
    }
}

impl Module {
    /// Creates a module that imports another one.
    pub(crate) fn importing(name: &str, of: &str) -> Module {
        let file = PathBuf::from(name);
        let import = Import { of: of.to_owned(), what: of.to_owned(), file: file.clone() };
        Module { name: name.to_owned(), file, imports: vec![import] }
    }

    pub(crate) fn imports(&self) -> &[Import] {
        &self.imports
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every module that is compiled into the library, except its root and its tests.
pub(crate) fn of_the_library() -> &'static [Module] {
    // Read once: to parse the library takes longer than all else of these tests.
    static MODULES: LazyLock<Vec<Module>> = LazyLock::new(read_library);
    &MODULES
}

fn read_library() -> Vec<Module> {
    let mut files = Vec::new();
    read(&root().join("src/lib.rs"), &[], &mut files);
    let names: Vec<String> = files.iter().map(|file| file.path.join("::")).collect();
    let module = |file: File| {
        let name = file.path.join("::");
        let mut imports: Vec<Import> = Vec::new();
        for used in file.used {
            // In a path like `store::redis::RedisOpenError` everything is a module except the last part.
            let modules = (1..=used.len()).rev().map(|part| used[..part].join("::"));
            if let Some(of) = modules.into_iter().find(|part| names.contains(part)) {
                let what = used.join("::");
                if of != name && !imports.iter().any(|import| import.what == what) {
                    imports.push(Import { of, what, file: file.file.clone() });
                }
            }
        }
        Module { name, file: file.file, imports }
    };
    let modules: Vec<Module> = files.into_iter().map(module).collect();
    assert!(modules.len() > 100, "{}", modules.len());
    let paths = modules.iter().map(|module| module.imports.len()).sum::<usize>();
    assert!(paths > 500, "{paths} of {:?}", modules.first().map(|module| &module.file));
    modules
}

/// A file and each path that it uses, from the crate's root on.
struct File {
    file: PathBuf,
    path: Vec<String>,
    used: Vec<Vec<String>>,
}

/// Reads a file and the modules that it declares, but not the root itself.
fn read(file: &Path, path: &[String], files: &mut Vec<File>) {
    let text = std::fs::read_to_string(file).unwrap();
    let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let mut reader = Reader { here: path.to_vec(), used: Vec::new(), declared: Vec::new() };
    reader.visit_file(&syntax);
    let Reader { used, declared, .. } = reader;
    if !path.is_empty() {
        files.push(File { file: file.to_owned(), path: path.to_vec(), used });
    }
    for path in declared {
        let stem = root().join("src").join(path.join("/"));
        let file = stem.with_extension("rs");
        let file = if file.exists() { file } else { stem.join("mod.rs") };
        read(&file, &path, files);
    }
}

struct Reader {
    /// The current module, which may lie within a file.
    here: Vec<String>,
    used: Vec<Vec<String>>,
    /// Modules in files of their own.
    declared: Vec<Vec<String>>,
}

impl Reader {
    /// Records a path if it is one of the crate; `words`: its parts as written.
    fn note(&mut self, words: &[String]) {
        let mut base = self.here.clone();
        let mut rest = words;
        match words.first().map(String::as_str) {
            Some("crate") => (base, rest) = (Vec::new(), &words[1..]),
            Some("self") => rest = &words[1..],
            Some("super") => {
                while let Some(("super", above)) =
                    rest.split_first().map(|(word, above)| (word.as_str(), above))
                {
                    base.pop();
                    rest = above;
                }
            }
            _ => return,
        }
        // `self` at the end of a group, and a glob, belong to the module before them.
        let rest = rest.iter().filter(|word| !matches!(word.as_str(), "self" | "*"));
        base.extend(rest.cloned());
        self.used.push(base);
    }

    fn note_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |word: String| [before, &[word]].concat();
        match tree {
            UseTree::Path(path) => self.note_tree(&with(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => self.note(&with(name.ident.to_string())),
            UseTree::Rename(name) => self.note(&with(name.ident.to_string())),
            UseTree::Glob(_) => self.note(&with("*".to_owned())),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.note_tree(before, tree));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !attributes.iter().any(is_of_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.here.push(item.ident.to_string());
        match &item.content {
            Some(_) => visit::visit_item_mod(self, item),
            None => self.declared.push(self.here.clone()),
        }
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if words.len() > 1 {
            self.note(&words);
        }
        visit::visit_path(self, path);
    }

    /// Reads the words of a macro without parsing: anything that looks like a path is one.
    fn visit_macro(&mut self, call: &'ast Macro) {
        let text = call.tokens.to_string().replace("::", " :: ");
        let words: Vec<&str> = text.split_whitespace().collect();
        for at in 0..words.len() {
            let is_first = at == 0 || words[at - 1] != "::";
            let mut path = vec![words[at].to_owned()];
            let mut pairs = words[at + 1..].chunks_exact(2);
            while let Some(&["::", word]) = pairs.next() {
                path.push(word.to_owned());
            }
            if is_first && path.len() > 1 {
                self.note(&path);
            }
        }
        visit::visit_macro(self, call);
    }

    /// Skips `pub(in path)`, which uses nothing of the path.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}

/// Returns whether it is `#[cfg(test)]`.
fn is_of_tests(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    }
}
