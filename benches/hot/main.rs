//! Hot: how long the pure functions take that every job passes, by Criterion.
//!
//! `cargo bench --bench hot -- receipt` measures those whose name contains that, and compares with the last
//! run on this machine. What must not get slower is counted in instructions by the bench `regress`.

mod paths;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for path in paths::all() {
        let mut step = path.step;
        criterion.bench_function(path.name, |bencher| bencher.iter(&mut step));
    }
    criterion.final_summary();
}
