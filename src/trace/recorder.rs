//! Recorder of finished spans, for tests.

use std::sync::Arc;

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
use parking_lot::Mutex;

use super::{Conventions, Tracer};

/// Exporter that keeps the spans. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanRecorder(Arc<Mutex<Vec<SpanData>>>);

/// Span as tests compare it.
#[derive(Clone, Debug)]
pub(crate) struct RecordedSpan(pub(crate) SpanData);

// === impl SpanRecorder ===

impl SpanRecorder {
    /// Creates a tracer that samples as `sampler` does, and the recorder of its spans.
    pub(crate) fn tracer(sampler: Sampler, conventions: Conventions) -> (Tracer, SpanRecorder) {
        let recorder = SpanRecorder::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(recorder.clone())
            .with_sampler(sampler)
            .build();
        (Tracer::new(&provider, conventions), recorder)
    }

    /// Takes the spans that ended.
    pub(crate) fn take(&self) -> Vec<RecordedSpan> {
        let spans = std::mem::take(&mut *self.0.lock());
        spans.into_iter().map(RecordedSpan).collect()
    }
}

impl SpanExporter for SpanRecorder {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(batch);
        Ok(())
    }
}

// === impl RecordedSpan ===

impl RecordedSpan {
    /// Returns an attribute as text; empty if it is absent.
    pub(crate) fn attribute(&self, name: &str) -> String {
        let mut found = self.0.attributes.iter().filter(|a| a.key.as_str() == name);
        let first = found.next().map(|attribute| attribute.value.to_string());
        assert!(found.next().is_none(), "{name} is given twice");
        first.unwrap_or_default()
    }
}
