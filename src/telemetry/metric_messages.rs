//! Converts series of the registry to metrics of OTLP. Names and labels stay as they are on `/metrics`, so that one
//! dashboard serves both ways.

use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};
use prometheus::proto::{self, MetricFamily, MetricType};

use crate::metrics::Metrics;

/// Converts series that count since `start` and were read at `now`, in nanoseconds since 1970.
pub(super) fn to_metrics(families: Vec<MetricFamily>, start: u64, now: u64) -> Vec<Metric> {
    families.iter().filter_map(|family| to_metric(family, start, now)).collect()
}

fn to_metric(family: &MetricFamily, start: u64, now: u64) -> Option<Metric> {
    let series = family.get_metric().iter();
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match family.get_field_type() {
        MetricType::COUNTER => Data::Sum(Sum {
            data_points: series
                .map(|series| number(series, series.get_counter().get_value(), start, now))
                .collect(),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        MetricType::GAUGE => Data::Gauge(Gauge {
            data_points: series
                .map(|series| number(series, series.get_gauge().get_value(), 0, now))
                .collect(),
        }),
        MetricType::HISTOGRAM => Data::Histogram(Histogram {
            data_points: series.map(|series| histogram(series, start, now)).collect(),
            aggregation_temporality: cumulative,
        }),
        // The registry has no others.
        MetricType::SUMMARY | MetricType::UNTYPED => return None,
    };
    let name = family.name().to_owned();
    let unit = Metrics::unit(&name).to_owned();
    let description = family.help().to_owned();
    Some(Metric { name, description, unit, data: Some(data), ..Metric::default() })
}

fn number(series: &proto::Metric, value: f64, start: u64, now: u64) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(series),
        start_time_unix_nano: start,
        time_unix_nano: now,
        value: Some(Value::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

fn histogram(series: &proto::Metric, start: u64, now: u64) -> HistogramDataPoint {
    let histogram = series.get_histogram();
    let buckets = histogram.get_bucket();
    let count = histogram.get_sample_count();
    // A bucket of the registry contains those below it; the last one of OTLP has no upper bound.
    let mut below = 0;
    let mut of_bucket = |up_to: u64| up_to - std::mem::replace(&mut below, up_to);
    let mut counts: Vec<_> =
        buckets.iter().map(|bucket| of_bucket(bucket.cumulative_count())).collect();
    counts.push(of_bucket(count));
    HistogramDataPoint {
        attributes: attributes(series),
        start_time_unix_nano: start,
        time_unix_nano: now,
        count,
        sum: Some(histogram.get_sample_sum()),
        bucket_counts: counts,
        explicit_bounds: buckets.iter().map(proto::Bucket::upper_bound).collect(),
        ..HistogramDataPoint::default()
    }
}

fn attributes(series: &proto::Metric) -> Vec<opentelemetry_proto::tonic::common::v1::KeyValue> {
    let labels = series.get_label().iter();
    let pair = |label: &proto::LabelPair| {
        (&KeyValue::new(label.name().to_owned(), label.value().to_owned())).into()
    };
    labels.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounter, Opts, Registry};

    use super::*;

    #[test]
    fn series_keep_names_labels_and_buckets() {
        let registry = Registry::new();
        let jobs = IntCounter::new("ringq_jobs_enqueued_total", "Jobs.").unwrap();
        let size = GaugeVec::new(Opts::new("ringq_store_bytes", "Size."), &["shard"]).unwrap();
        let buckets = HistogramOpts::new("ringq_job_lag_seconds", "Lag.").buckets(vec![0.5, 1.0]);
        let lag = HistogramVec::new(buckets, &["topic"]).unwrap();
        registry.register(Box::new(jobs.clone())).unwrap();
        registry.register(Box::new(size.clone())).unwrap();
        registry.register(Box::new(lag.clone())).unwrap();
        jobs.inc_by(3);
        size.with_label_values(&["s0"]).set(-7.0);
        for value in [0.1, 0.7, 0.8, 9.0, 9.5, 10.0] {
            lag.with_label_values(&["a"]).observe(value);
        }
        let metrics = to_metrics(registry.gather(), 1, 2);
        let names: Vec<_> = metrics.iter().map(|m| (&*m.name, &*m.unit, &*m.description)).collect();
        assert_eq!(
            names,
            [
                ("ringq_job_lag_seconds", "s", "Lag."),
                ("ringq_jobs_enqueued_total", "", "Jobs."),
                ("ringq_store_bytes", "By", "Size.")
            ]
        );
        let Some(Data::Sum(sum)) = &metrics[1].data else { panic!("{metrics:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        let point = &sum.data_points[0];
        assert_eq!((&point.value, point.start_time_unix_nano), (&Some(Value::AsDouble(3.0)), 1));
        let Some(Data::Histogram(lag)) = &metrics[0].data else { panic!("{metrics:?}") };
        let point = &lag.data_points[0];
        assert_eq!((&point.bucket_counts[..], point.count), (&[1, 2, 3][..], 6));
        assert_eq!(
            (&point.explicit_bounds[..], point.attributes[0].key.as_str()),
            (&[0.5, 1.0][..], "topic")
        );
        assert!((point.sum.unwrap() - 30.1).abs() < 1e-9);
        let Some(Data::Gauge(size)) = &metrics[2].data else { panic!("{metrics:?}") };
        assert_eq!(size.data_points[0].value, Some(Value::AsDouble(-7.0)));
        assert_eq!(size.data_points[0].time_unix_nano, 2);
    }
}
