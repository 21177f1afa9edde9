//! Hot: time of the pure functions in the path of every job, by Criterion.
//!
//! `cargo bench --bench hot -- receipt` measures those whose name contains that, and compares with the last run on
//! this machine. The bench `regress` counts their instructions, which must not grow.

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
