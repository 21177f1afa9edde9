//! Allowed imports between modules: the layers of `src/architecture.md`, and no circles below them.
//!
//! Only code without its tests counts: each `use`, and each path that begins with `crate`, `self` or `super`. A
//! module and those inside it may use each other.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod architecture;
mod blocking_writes;
mod imports;
mod wall_time;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use imports::{Import, Module};

/// Allowed imports of each module of `src/lib.rs`. A line names earlier lines only, so that imports run one way.
const LAYERS: [(&str, &[&str]); 32] = [
    // Beside all layers: each does one thing, for any module.
    ("backoff", &[]),
    ("log_limiter", &[]),
    ("line_writer", &[]),
    ("stderr", &["line_writer"]),
    ("metrics", &["stderr"]),
    ("keda", &[]),
    ("pb", &[]),
    ("canonical_json", &["pb"]),
    ("shutdown", &["stderr"]),
    ("source_files", &[]),
    ("trace", &[]),
    ("telemetry", &["log_limiter", "metrics", "stderr", "trace"]),
    // Pure: it calls no other module.
    ("domain", &[]),
    // Beside the layers, too: they bound what a client may do.
    ("connections", &["backoff", "domain", "log_limiter", "metrics"]),
    ("rpc", &[]),
    ("clock", &["domain"]),
    ("tls", &["clock", "domain", "log_limiter", "metrics"]),
    ("auth", &["backoff", "clock", "domain", "metrics", "rpc", "source_files", "tls"]),
    ("audit", &["clock", "domain", "line_writer", "log_limiter", "rpc"]),
    // The layers, from below.
    ("store", &["clock", "domain", "backoff"]),
    ("shards", &["clock", "domain", "metrics", "backoff", "log_limiter", "store"]),
    ("documents", &["clock", "domain", "backoff", "shards", "store"]),
    (
        "scheduler",
        &["clock", "documents", "domain", "metrics", "backoff", "log_limiter", "shards", "store"],
    ),
    (
        "dispatch",
        &[
            "auth",
            "clock",
            "documents",
            "domain",
            "metrics",
            "backoff",
            "scheduler",
            "shards",
            "store",
        ],
    ),
    ("timer", &["clock", "domain", "backoff", "scheduler", "shards", "store"]),
    // At the edge: they have no access to shards, and the code generated from the contract stays here.
    (
        "contract",
        &[
            "canonical_json",
            "dispatch",
            "documents",
            "domain",
            "keda",
            "pb",
            "scheduler",
            "source_files",
            "store",
            "trace",
        ],
    ),
    (
        "grpc",
        &[
            "audit",
            "auth",
            "canonical_json",
            "connections",
            "contract",
            "dispatch",
            "documents",
            "domain",
            "keda",
            "metrics",
            "pb",
            "log_limiter",
            "rpc",
            "scheduler",
            "store",
            "tls",
            "trace",
        ],
    ),
    ("http", &["audit", "auth", "connections", "grpc", "metrics", "rpc", "tls"]),
    ("config", &["audit", "contract", "domain", "store", "telemetry", "tls"]),
    (
        "app",
        &[
            "audit",
            "auth",
            "clock",
            "config",
            "contract",
            "dispatch",
            "documents",
            "domain",
            "grpc",
            "http",
            "metrics",
            "scheduler",
            "shards",
            "store",
            "telemetry",
            "timer",
            "tls",
            "trace",
        ],
    ),
    // Clients: they use the public API, and the limits of its values.
    ("client", &["backoff", "pb"]),
    (
        "cli",
        &[
            "app",
            "auth",
            "backoff",
            "canonical_json",
            "client",
            "clock",
            "config",
            "contract",
            "domain",
            "line_writer",
            "pb",
            "rpc",
            "shutdown",
            "stderr",
            "telemetry",
            "trace",
        ],
    ),
];

/// The two stores. Code behind the trait is independent of the store, except for the code that chooses one.
const STORES: [&str; 2] = ["store::redis", "store::sqlite"];
const CHOOSE_A_STORE: [&str; 2] = ["app", "config"];

fn top(module: &str) -> &str {
    module.split("::").next().unwrap()
}

/// Returns whether one is the other or lies in it.
fn are_kin(a: &str, b: &str) -> bool {
    let lies_in = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    lies_in(a, b) || lies_in(b, a)
}

fn is_in(module: &str, tops: &[&str]) -> bool {
    tops.contains(&top(module))
}

/// Returns the children of the nearest common parent that the two modules are or lie in; `None`: one lies in the other.
fn siblings<'a>(a: &'a str, b: &'a str) -> Option<(&'a str, &'a str)> {
    let parts = a.split("::").zip(b.split("::"));
    let parent: usize =
        parts.take_while(|(a, b)| a == b).map(|(part, _)| part.len() + "::".len()).sum();
    let child = |module: &'a str| {
        let rest = module.get(parent..)?;
        Some(&module[..parent + rest.find("::").unwrap_or(rest.len())])
    };
    Some((child(a)?, child(b)?))
}

/// Imports between siblings by the importing one, each with the sibling that it leads to.
type Graph<'a> = BTreeMap<&'a str, Vec<(&'a str, &'a Import)>>;

fn graph(modules: &[Module]) -> Graph<'_> {
    let mut graph = Graph::new();
    for module in modules {
        for import in module.imports() {
            if let Some((importer, imported)) = siblings(&module.name, &import.of) {
                graph.entry(importer).or_default().push((imported, import));
            }
        }
    }
    graph
}

/// Returns the shortest way from a module back to itself: each import, and where it leads.
fn circle<'a>(graph: &Graph<'a>, start: &'a str) -> Option<Vec<(&'a str, &'a Import)>> {
    let mut came_by: BTreeMap<&str, (&str, &Import)> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(module) = next.pop_front() {
        for &(imported, import) in graph.get(module).into_iter().flatten() {
            if !came_by.contains_key(imported) {
                came_by.insert(imported, (module, import));
                next.push_back(imported);
            }
        }
    }
    let mut way = Vec::new();
    let mut at = start;
    while way.is_empty() || at != start {
        let &(from, import) = came_by.get(at)?;
        way.push((at, import));
        at = from;
    }
    way.reverse();
    Some(way)
}

/// Returns the imports of each circle, one circle after the other.
fn circles(modules: &[Module]) -> String {
    let graph = graph(modules);
    let mut seen = BTreeSet::new();
    let mut found = String::new();
    for &module in graph.keys() {
        if seen.contains(module) {
            continue;
        }
        if let Some(circle) = circle(&graph, module) {
            found += "\n";
            for (imported, import) in circle {
                found += &format!("  {import}\n");
                seen.insert(imported);
            }
        }
    }
    found
}

/// Compares the children of each module with each other. A folder counts as one module: an import by or of any of its
/// files is one by or of the folder. A child may use what its parent has, and the parent its children: so all files of
/// a folder share the type of its `mod.rs`, and names that the parent passes on count as its own.
#[test]
fn no_modules_import_each_other_in_a_circle() {
    let found = circles(imports::of_the_library());
    assert!(
        found.is_empty(),
        "modules import each other in circles; move what one of them takes from the next to where it belongs, \
         below both:\n{found}"
    );
}

#[test]
fn a_folder_counts_as_one_module_in_a_circle() {
    let circles_of = |imports: &str| {
        let imports = imports.split(", ").map(|import| import.split_once(" -> ").unwrap());
        circles(&imports.map(|(module, of)| Module::importing(module, of)).collect::<Vec<_>>())
    };
    for circle in [
        "a::b -> a::bc, a::bc -> a::b",
        "a::b -> a::c, a::c::d -> a::b",
        "a::b::d -> a::c::d, a::c::e -> a::b::e",
        "a::b -> a::c, a::c::d -> a::e, a::e::d -> a::b",
        "a::b -> c, c::b -> a",
    ] {
        let found = circles_of(circle);
        assert_eq!(found.lines().count(), 1 + circle.split(", ").count(), "{circle}: {found}");
    }
    for free in [
        "a::b -> a::c, a::c -> a::d, a::d::e -> b::a",
        "a -> a::b, a -> a::c::d, a::b -> a, a::c::d -> a",
        "a::b::c -> a::b::d, a::b::d -> a::c::d, a::b::d -> a::b",
    ] {
        assert_eq!(circles_of(free), "", "{free}");
    }
}

/// Returns whether the import lies in a store, and the importer does not.
fn names_a_store(imported: &str, importer: &str) -> bool {
    let store = STORES.iter().find(|store| are_kin(store, imported) && imported != "store");
    store.is_some_and(|store| !are_kin(store, importer))
}

#[test]
fn every_store_is_watched() {
    let modules = imports::of_the_library();
    let parts = modules.iter().filter_map(|module| module.name.rsplit_once("::"));
    let parents: BTreeSet<&str> = parts.map(|(parent, _)| parent).collect();
    let is_store = |name: &&str| {
        name.starts_with("store::") && !["store::values", "store::codec"].contains(name)
    };
    assert_eq!(parents.into_iter().filter(is_store).collect::<Vec<_>>(), STORES);
    let tried = include_str!("../it/conformance/mod.rs");
    for store in STORES.map(|store| store.trim_start_matches("store::")) {
        assert!(
            tried.contains(&format!("\nconformance!({store}")),
            "{store} has no conformance test"
        );
    }
}

#[test]
fn imports_run_downwards_only() {
    let layers = BTreeMap::from(LAYERS);
    let mut found = String::new();
    for module in imports::of_the_library() {
        let importer = top(&module.name);
        for import in module.imports().iter().filter(|import| !are_kin(&module.name, &import.of)) {
            let (imported, Some(&allowed)) = (top(&import.of), layers.get(importer)) else {
                continue;
            };
            if imported != importer && !allowed.contains(&imported) {
                let allowed = match allowed {
                    [] => "nothing".to_owned(),
                    some => some.join(", "),
                };
                found += &format!("  {import}\n    {importer} may import {allowed}\n");
            }
            if names_a_store(&import.of, &module.name) && !is_in(importer, &CHOOSE_A_STORE) {
                found += &format!("  {import}\n    one store is like the other: use the trait\n");
            }
        }
    }
    assert!(found.is_empty(), "imports against the layers of src/architecture.md:\n{found}");
}

#[test]
fn every_module_has_its_layer_and_no_layer_names_one_above_it() {
    let known: Vec<&str> = LAYERS.iter().map(|(name, _)| *name).collect();
    for module in imports::of_the_library() {
        let name = top(&module.name);
        assert!(known.contains(&name), "{name} is new: add its allowed imports to LAYERS");
    }
    for (at, (name, allowed)) in LAYERS.iter().enumerate() {
        for below in *allowed {
            assert!(
                known[..at].contains(below),
                "{name} may import {below}, which is not below it"
            );
        }
    }
}
