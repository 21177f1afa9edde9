//! `make test` has no assertion with an upper bound on wall time: on a busy machine it fails without a fault. A test
//! waits for an event, or compares the order of two events, counters or a driven clock.

use std::collections::BTreeSet;
use std::path::Path;

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Ident, Macro, ReturnType, Token};

/// Folders with the tests of `make test`; the product's code has unit tests.
const FOLDERS: [&str; 5] = ["tests/it", "tests/checker", "tests/modules", "tests/faults", "src"];

/// Functions that may compare a measured time, each with its reason.
const ALLOWED: [(&str, &str, &str); 4] = [
    ("src/scheduler/tests/test_ring.rs", "eventually", "a guard against hanging"),
    ("src/metrics/process.rs", "this_process_has_plausible_numbers", "a day since the start"),
    ("src/cli/work/environment.rs", "deadlines_are_rfc_3339", "ten seconds, of no call"),
    ("src/cli/bench/round.rs", "due_times_fill_the_spread", "due times, which lie ahead"),
];

/// The one file of `tests/it` that calls `timeout`: its helpers are guards against hanging, or go on either way.
const WAITS: &str = "tests/it/harness/time.rs";

/// Names that read a clock.
const NOW: [&str; 2] = ["now", "wall_now"];

/// Macros that fail a test.
const ASSERTIONS: [&str; 2] = ["assert", "debug_assert"];

/// Functions of a file that return a time they measured.
#[derive(Default)]
struct Clocks(BTreeSet<String>);

impl Clocks {
    fn note(&mut self, name: &Ident, output: &ReturnType, block: &Block) {
        let mut returned = Names::default();
        returned.visit_return_type(output);
        let mut called = Names::default();
        called.visit_block(block);
        if returned.0.contains("Duration") && called.0.contains("elapsed") {
            self.0.insert(name.to_string());
        }
    }
}

impl Visit<'_> for Clocks {
    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        self.note(&item.sig.ident, &item.sig.output, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &syn::ImplItemFn) {
        self.note(&item.sig.ident, &item.sig.output, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

/// Names in a piece of code.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Visit<'_> for Names {
    fn visit_ident(&mut self, name: &Ident) {
        self.0.insert(name.to_string());
    }
}

fn names(expr: &Expr) -> BTreeSet<String> {
    let mut names = Names::default();
    names.visit_expr(expr);
    names.0
}

/// Reader of a file, which follows measured times through the variables of each function.
struct Reader<'a> {
    clocks: &'a BTreeSet<String>,
    function: String,
    measured: BTreeSet<String>,
    rates: BTreeSet<String>,
    found: BTreeSet<(String, &'static str)>,
}

/// Returns whether a test drives its clock from the start, so that it measures no wall time.
fn drives_its_clock(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.parse_args_with(Punctuated::<syn::Meta, Token![,]>::parse_terminated).is_ok_and(
            |arguments| arguments.iter().any(|argument| argument.path().is_ident("start_paused")),
        )
    })
}

impl Reader<'_> {
    fn enter(&mut self, name: &Ident, read: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.function, name.to_string());
        let measured = std::mem::take(&mut self.measured);
        let rates = std::mem::take(&mut self.rates);
        read(self);
        self.function = outer;
        (self.measured, self.rates) = (measured, rates);
    }

    /// Returns whether a time was measured for this value, which grows with it.
    fn is_measured(&self, expr: &Expr) -> bool {
        let names = names(expr);
        let is_time = names.contains("elapsed")
            || (names.iter().any(|name| NOW.contains(&name.as_str())) && is_difference(expr))
            || names.iter().any(|name| self.measured.contains(name) || self.clocks.contains(name));
        is_time && !self.is_rate(expr)
    }

    /// Returns whether the value is a number for each unit of a measured time.
    fn is_rate(&self, expr: &Expr) -> bool {
        let mut divisions = Divisions { reader: self, found: false };
        divisions.visit_expr(expr);
        divisions.found || names(expr).iter().any(|name| self.rates.contains(name))
    }

    /// Reads the condition of an assertion.
    fn check(&mut self, condition: &Expr) {
        let mut bounds = Bounds { reader: self, found: false };
        bounds.visit_expr(condition);
        if bounds.found {
            self.found.insert((self.function.clone(), "an upper bound on a measured time"));
        }
    }
}

/// Returns whether the value is a time less an earlier one.
fn is_difference(expr: &Expr) -> bool {
    match expr {
        Expr::Binary(binary) => matches!(binary.op, BinOp::Sub(_)),
        Expr::MethodCall(call) => {
            call.method.to_string().contains("duration_since") || is_difference(&call.receiver)
        }
        Expr::Paren(inner) => is_difference(&inner.expr),
        _ => false,
    }
}

/// Search of a value for a division by a measured time.
struct Divisions<'a, 'b> {
    reader: &'a Reader<'b>,
    found: bool,
}

impl Visit<'_> for Divisions<'_, '_> {
    fn visit_expr_binary(&mut self, binary: &syn::ExprBinary) {
        let is_division = matches!(binary.op, BinOp::Div(_));
        self.found |= is_division && self.reader.is_measured(&binary.right);
        visit::visit_expr_binary(self, binary);
    }
}

/// Search of a condition for a measured time that has to be less than something.
struct Bounds<'a, 'b> {
    reader: &'a Reader<'b>,
    found: bool,
}

impl Visit<'_> for Bounds<'_, '_> {
    fn visit_expr_binary(&mut self, binary: &syn::ExprBinary) {
        let sides = match binary.op {
            BinOp::Lt(_) | BinOp::Le(_) => Some((&binary.left, &binary.right)),
            BinOp::Gt(_) | BinOp::Ge(_) => Some((&binary.right, &binary.left)),
            _ => None,
        };
        self.found |= sides
            .is_some_and(|(less, more)| self.reader.is_measured(less) || self.reader.is_rate(more));
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        let is_range = names_a_range(&call.receiver) && call.method == "contains";
        self.found |= is_range && call.args.iter().any(|value| self.reader.is_measured(value));
        visit::visit_expr_method_call(self, call);
    }
}

fn names_a_range(expr: &Expr) -> bool {
    match expr {
        Expr::Paren(inner) => names_a_range(&inner.expr),
        Expr::Range(range) => range.end.is_some(),
        _ => false,
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        if !drives_its_clock(&item.attrs) {
            self.enter(&item.sig.ident, |reader| visit::visit_item_fn(reader, item));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &syn::ImplItemFn) {
        self.enter(&item.sig.ident, |reader| visit::visit_impl_item_fn(reader, item));
    }

    fn visit_local(&mut self, local: &syn::Local) {
        visit::visit_local(self, local);
        let value = local.init.as_ref().map(|init| &init.expr);
        if value.is_some_and(|value| self.is_measured(value)) {
            Bound(&mut self.measured).visit_pat(&local.pat);
        } else if value.is_some_and(|value| self.is_rate(value)) {
            Bound(&mut self.rates).visit_pat(&local.pat);
        }
    }

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        if call.method == "push" && call.args.iter().any(|value| self.is_measured(value)) {
            self.measured.extend(names(&call.receiver));
        }
    }

    fn visit_expr_call(&mut self, call: &syn::ExprCall) {
        visit::visit_expr_call(self, call);
        if names(&call.func).iter().any(|name| name == "timeout" || name == "timeout_at") {
            self.found.insert((self.function.clone(), "`timeout`"));
        }
    }

    fn visit_macro(&mut self, called: &Macro) {
        let is_assertion = ASSERTIONS.iter().any(|name| called.path.is_ident(name));
        let Ok(parts) = called.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated)
        else {
            return;
        };
        if let Some(condition) = parts.first().filter(|_| is_assertion) {
            self.check(condition);
        }
        for part in &parts {
            self.visit_expr(part);
        }
    }
}

/// Variables of a pattern.
struct Bound<'a>(&'a mut BTreeSet<String>);

impl Visit<'_> for Bound<'_> {
    fn visit_pat_ident(&mut self, pattern: &syn::PatIdent) {
        self.0.insert(pattern.ident.to_string());
        visit::visit_pat_ident(self, pattern);
    }
}

/// Returns the functions of a file that limit a measured time, and how.
fn limits(text: &str) -> BTreeSet<(String, &'static str)> {
    let file = syn::parse_file(text).unwrap();
    let mut clocks = Clocks::default();
    clocks.visit_file(&file);
    let mut reader = Reader {
        clocks: &clocks.0,
        function: String::new(),
        measured: BTreeSet::new(),
        rates: BTreeSet::new(),
        found: BTreeSet::new(),
    };
    reader.visit_file(&file);
    reader.found
}

#[test]
fn no_test_limits_the_time_that_something_takes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut used = BTreeSet::<&(&str, &str, &str)>::new();
    for path in FOLDERS.iter().flat_map(|folder| crate::blocking_writes::files(&root.join(folder)))
    {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        for (function, limit) in limits(&std::fs::read_to_string(&path).unwrap()) {
            // The load of a fault test gives up calls that a broken server never answers, and so does the product.
            let may_wait = ["tests/faults", "src"].iter().any(|folder| name.starts_with(folder));
            let is_wait = limit == "`timeout`" && (name == WAITS || may_wait);
            let allowed = ALLOWED.iter().find(|(file, of, _)| (*file, *of) == (name, &function));
            used.extend(allowed);
            if !is_wait && allowed.is_none() {
                found.push(format!("{name}: {function}: {limit}"));
            }
        }
    }
    assert!(
        found.is_empty(),
        "wait for an event with `within`, or compare an order, a counter or a driven clock:\n{}",
        found.join("\n")
    );
    assert_eq!(used.len(), ALLOWED.len(), "only these allowed places limit a time: {used:?}");
}

#[test]
fn a_limit_of_a_measured_time_is_found() {
    let found = |body: &str| {
        let clock = "fn clock() -> Duration { let begun = Instant::now(); begun.elapsed() }";
        limits(&format!("{clock} async fn checks() {{ {body} }}"))
    };
    for bounded in [
        "assert!(begun.elapsed() < millis(500));",
        "assert!(millis(500) >= begun.elapsed(), \"late\");",
        "let took = begun.elapsed(); if slow { assert!(took <= limit && true, \"{took:?}\"); }",
        "let took = begun.elapsed().as_secs_f64(); let rate = 100.0 / took; assert!(rate > 5.0);",
        "let mut all = Vec::new(); all.push(begun.elapsed()); assert!(all[0] < all[1] * 3);",
        "let (answer, took) = (call().await, begun.elapsed()); assert!(!took.is_zero() && took < limit);",
        "assert!((millis(100)..millis(500)).contains(&begun.elapsed()));",
        "assert!(clock() < millis(500));",
        "let took = clock(); assert!(took < other);",
        "assert!(Instant::now() - begun < millis(500));",
        "assert!((wall_now() - begun).as_secs() < 5);",
        "assert!(SystemTime::now().duration_since(begun).unwrap() < millis(500));",
        "tokio::time::timeout(millis(500), call()).await.unwrap();",
        "join!(async { timeout_at(deadline, call()).await.unwrap(); }, other());",
        "join!(async { assert!(begun.elapsed() < millis(5)); }, other());",
    ] {
        let found = found(bounded);
        let functions: Vec<&str> = found.iter().map(|(function, _)| function.as_str()).collect();
        assert_eq!(functions, ["checks"], "{bounded}");
    }
    for free in [
        "assert!(begun.elapsed() >= millis(500));",
        "let took = begun.elapsed(); assert!(millis(500) < took);",
        "let rate = count / begun.elapsed().as_secs_f64(); assert!(rate < 5.0);",
        "while begun.elapsed() < millis(500) { push().await; }",
        "assert!(Instant::now() < deadline, \"{what}: not so\");",
        "assert!((millis(500)..).contains(&begun.elapsed()));",
        "println!(\"{:?}\", begun.elapsed()); assert!(count < 5);",
        "assert!(first < second); let took = begun.elapsed();",
        "within(\"the event\", worker.next()).await;",
    ] {
        assert_eq!(found(free), BTreeSet::new(), "{free}");
    }
    let test = "async fn checks() { assert!(begun.elapsed() < millis(5)); }";
    for (attribute, is_free) in [("(start_paused = true)", true), ("(worker_threads = 2)", false)] {
        let found = limits(&format!("#[tokio::test{attribute}] {test}"));
        assert_eq!(found.is_empty(), is_free, "{attribute}");
    }
}
