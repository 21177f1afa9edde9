//! Signals that leave the process: the log on stderr (`log`), and by OTLP over gRPC, if they are switched on, spans, log
//! records and metrics.
//!
//! - `signals`: which signals are exported, and the variables of OpenTelemetry
//! - `receiver`: the receiver that the variables name
//! - `batches`: sizes and intervals of exports
//! - `variable_check`: variables whose values have no effect
//! - `otlp`: the exporters of one process
//! - `metric_push`, `metric_messages`: export of the metrics, which the SDK does not know
//! - `export_monitor`: failures of exports, in the log

mod batches;
mod export_monitor;
mod log;
mod metric_messages;
mod metric_push;
mod otlp;
mod receiver;
mod signals;
mod variable_check;

pub use log::{LogFormat, filter};
pub use metric_push::{LastMetrics, MetricExport, MetricSource};
pub use otlp::Telemetry;
pub use receiver::invalid_receiver;
pub use signals::{OtelVariables, OtlpConfig, Signals};
