//! Settings of a scaler: topics, target and the time in which workers start.

use std::collections::HashMap;
use std::time::Duration;

use crate::domain::{TopicName, limit};
use crate::keda::{
    GetMetricSpecResponse, GetMetricsResponse, MetricSpec, MetricValue, ScaledObjectRef,
};

use super::number::to_int64;
use super::{Checks, FieldPath, InvalidRequest};

/// Name of the only metric.
const METRIC: &str = "ringq-jobs";
/// Jobs for each worker by default.
const TARGET_DEFAULT: f64 = 10.0;
/// Time in which workers start by default.
const START_DEFAULT: Duration = Duration::from_secs(30);
/// Maximum time in which workers start, in seconds.
const START_SECONDS_MAX: u64 = 3_600;

/// Settings of a scaler.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScalerSettings {
    /// Topics whose jobs are added up.
    pub(crate) topics: Vec<TopicName>,
    /// Jobs for each worker.
    target: f64,
    /// Jobs that are due within this time are counted.
    pub(crate) due_within: Duration,
}

/// Reads the settings of a ScaledObject.
pub(crate) fn settings(scaled: Option<&ScaledObjectRef>) -> Result<ScalerSettings, InvalidRequest> {
    let mut checks = Checks::default();
    let none = HashMap::new();
    let metadata = scaled.map_or(&none, |scaled| &scaled.scaler_metadata);
    let value = |key| metadata.get(key).map(|text| text.trim()).filter(|text| !text.is_empty());
    let path = FieldPath::ROOT.field("scalerMetadata");

    let names: Vec<&str> = value("topic").map_or(Vec::new(), |text| text.split(',').collect());
    checks.between_one_and(path.field("topic"), names.len(), limit::STREAM_TOPICS_MAX);
    let mut topics = Vec::with_capacity(names.len());
    for name in names {
        topics.extend(checks.check(path.field("topic"), TopicName::try_new(name.trim())));
    }
    topics.sort_unstable();
    topics.dedup();

    let target = value("targetJobs").map_or(Some(TARGET_DEFAULT), |text| {
        checks.check(path.field("targetJobs"), positive(text))
    });
    let due_within = value("startSeconds").map_or(Some(START_DEFAULT), |text| {
        checks.check(path.field("startSeconds"), start_time(text))
    });
    let settings = target.zip(due_within);
    checks.finish(settings.map(|(target, due_within)| ScalerSettings {
        topics,
        target,
        due_within,
    }))
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("must be a number of more than 0, not {text:?}"))
}

fn start_time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds <= START_SECONDS_MAX);
    let seconds =
        seconds.ok_or_else(|| format!("must be 0 to {START_SECONDS_MAX}, not {text:?}"))?;
    Ok(Duration::from_secs(seconds))
}

/// Builds the answer with the target of the only metric.
pub(crate) fn to_metric_spec(settings: &ScalerSettings) -> GetMetricSpecResponse {
    #[expect(clippy::cast_possible_truncation, reason = "a cast of a float saturates")]
    let target_size = settings.target.ceil() as i64;
    let spec = MetricSpec {
        metric_name: METRIC.to_owned(),
        target_size,
        target_size_float: settings.target,
    };
    GetMetricSpecResponse { metric_specs: vec![spec] }
}

/// Builds the answer with the value of the only metric.
pub(crate) fn to_metric_value(jobs: u64) -> GetMetricsResponse {
    #[expect(
        clippy::cast_precision_loss,
        reason = "an autoscaler needs no exact count of 2^53 jobs"
    )]
    let metric_value_float = jobs as f64;
    let value = MetricValue {
        metric_name: METRIC.to_owned(),
        metric_value: to_int64(jobs),
        metric_value_float,
    };
    GetMetricsResponse { metric_values: vec![value] }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    fn read(metadata: &[(&str, &str)]) -> Result<ScalerSettings, InvalidRequest> {
        let pairs = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        settings(Some(&ScaledObjectRef { scaler_metadata: pairs.collect(), ..Default::default() }))
    }

    #[test]
    fn settings_have_defaults_and_ignore_those_of_keda() {
        let settings = read(&[("topic", "mail"), ("scalerAddress", "ringq:7700")]).unwrap();
        assert_eq!(settings.topics, [TopicName::stored("mail")]);
        assert_eq!((settings.target, settings.due_within), (10.0, Duration::from_secs(30)));
        let all = [("topic", " b, a,b "), ("targetJobs", "2.5"), ("startSeconds", "0")];
        let settings = read(&all).unwrap();
        assert_eq!(settings.topics, ["a", "b"].map(TopicName::stored));
        let spec = to_metric_spec(&settings).metric_specs.remove(0);
        assert_eq!((spec.target_size, spec.target_size_float), (3, 2.5));
        assert_eq!(settings.due_within, Duration::ZERO);
    }

    #[test]
    fn settings_that_are_wrong_are_refused_with_their_names() {
        let many = vec!["t"; limit::STREAM_TOPICS_MAX + 1].join(",");
        for (metadata, field) in [
            (vec![], "scalerMetadata.topic"),
            (vec![("topic", " ")], "scalerMetadata.topic"),
            (vec![("topic", "a,,b")], "scalerMetadata.topic"),
            (vec![("topic", "a*")], "scalerMetadata.topic"),
            (vec![("topic", many.as_str())], "scalerMetadata.topic"),
            (vec![("topic", "a"), ("targetJobs", "0")], "scalerMetadata.targetJobs"),
            (vec![("topic", "a"), ("targetJobs", "NaN")], "scalerMetadata.targetJobs"),
            (vec![("topic", "a"), ("startSeconds", "3601")], "scalerMetadata.startSeconds"),
            (vec![("topic", "a"), ("startSeconds", "30s")], "scalerMetadata.startSeconds"),
        ] {
            let found = refused(read(&metadata));
            assert_eq!(found.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), [field]);
        }
        assert_eq!(refused(settings(None)).len(), 1);
    }

    #[test]
    fn the_value_is_the_number_of_jobs() {
        let value = to_metric_value(7).metric_values.remove(0);
        assert_eq!((value.metric_value, value.metric_value_float), (7, 7.0));
    }
}
