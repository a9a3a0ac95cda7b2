//! Presets of loads from metrics: of machines, and of engines of language models.

use evenkeel_core::load::LoadId;

use crate::schema::expression::Expression;
use crate::schema::field::{Blank, choice_field};

/// Load that is calculated from metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricLoad {
    /// The load.
    pub load: LoadId,
    /// Expression over the metrics.
    pub expression: Expression,
    /// True if not every exporter has the metrics, so that their absence is no fault.
    pub optional: bool,
}

/// A set of loads with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preset {
    /// Loads of a machine, from Prometheus' node exporter.
    NodeExporter,
    /// Queue of a vLLM engine.
    Vllm,
    /// Queue of an SGLang engine.
    Sglang,
    /// Queue of TensorRT-LLM, served by `trtllm-serve`.
    TrtllmServe,
    /// Queue of TensorRT-LLM, served by Triton.
    Triton,
    /// Queue of Hugging Face's Text Generation Inference.
    Tgi,
    /// Queue of `llama-server`.
    LlamaCpp,
}

choice_field!(
    Preset,
    "node_exporter" => Preset::NodeExporter,
    "vllm" => Preset::Vllm,
    "sglang" => Preset::Sglang,
    "trtllm_serve" => Preset::TrtllmServe,
    "triton" => Preset::Triton,
    "tgi" => Preset::Tgi,
    "llama_cpp" => Preset::LlamaCpp
);

impl Blank for Preset {
    fn blank() -> Self {
        Preset::NodeExporter
    }
}

/// Load of a preset: the load, its expression, and true if not every exporter has the metrics.
type PresetLoad = (LoadId, &'static str, bool);

/// Loads of a machine in the metrics of Prometheus' node exporter. Loads that need more than any Linux has are
/// optional.
const NODE_EXPORTER: &[PresetLoad] = &[
    (
        LoadId::CPU,
        r#"1 - avg(rate(node_cpu_seconds_total{mode="idle"}))"#,
        false,
    ),
    (
        LoadId::MEMORY,
        "1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes",
        false,
    ),
    (
        LoadId::RUN_QUEUE,
        r#"node_procs_running / count(node_cpu_seconds_total{mode="idle"})"#,
        false,
    ),
    (
        LoadId::DISK,
        "max(rate(node_disk_io_time_seconds_total))",
        true,
    ),
    (
        LoadId::CPU_PRESSURE,
        "rate(node_pressure_cpu_waiting_seconds_total)",
        true,
    ),
    (
        LoadId::MEMORY_PRESSURE,
        "rate(node_pressure_memory_waiting_seconds_total)",
        true,
    ),
    (
        LoadId::IO_PRESSURE,
        "rate(node_pressure_io_waiting_seconds_total)",
        true,
    ),
];

// Engines have a series for each data-parallel rank or model: requests are added, and the fullest cache counts. The share
// of the cache is optional, as its name has changed between versions.

const VLLM: &[PresetLoad] = &[
    (
        LoadId::WAITING_REQUESTS,
        "sum(vllm:num_requests_waiting)",
        false,
    ),
    (
        LoadId::IN_FLIGHT,
        "sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)",
        false,
    ),
    (LoadId::UTILIZATION, "max(vllm:kv_cache_usage_perc)", true),
];

const SGLANG: &[PresetLoad] = &[
    (
        LoadId::WAITING_REQUESTS,
        "sum(sglang:num_queue_reqs)",
        false,
    ),
    (
        LoadId::IN_FLIGHT,
        "sum(sglang:num_running_reqs) + sum(sglang:num_queue_reqs)",
        false,
    ),
    (LoadId::UTILIZATION, "max(sglang:token_usage)", true),
];

const TRTLLM_SERVE: &[PresetLoad] = &[
    (
        LoadId::WAITING_REQUESTS,
        "sum(trtllm_num_requests_waiting)",
        false,
    ),
    (
        LoadId::IN_FLIGHT,
        "sum(trtllm_num_requests_running) + sum(trtllm_num_requests_waiting)",
        false,
    ),
    (
        LoadId::UTILIZATION,
        "max(trtllm_kv_cache_utilization)",
        true,
    ),
];

const TRITON: &[PresetLoad] = &[
    (
        LoadId::WAITING_REQUESTS,
        r#"sum(nv_trt_llm_request_metrics{request_type="waiting"})"#,
        false,
    ),
    (
        LoadId::IN_FLIGHT,
        r#"sum(nv_trt_llm_request_metrics{request_type="scheduled"}) + sum(nv_trt_llm_request_metrics{request_type="waiting"})"#,
        false,
    ),
    (
        LoadId::UTILIZATION,
        r#"max(nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"})"#,
        true,
    ),
];

const TGI: &[PresetLoad] = &[
    (LoadId::WAITING_REQUESTS, "sum(tgi_queue_size)", false),
    (
        LoadId::IN_FLIGHT,
        "sum(tgi_batch_current_size) + sum(tgi_queue_size)",
        false,
    ),
];

const LLAMA_CPP: &[PresetLoad] = &[
    (
        LoadId::WAITING_REQUESTS,
        "sum(llamacpp:requests_deferred)",
        false,
    ),
    (
        LoadId::IN_FLIGHT,
        "sum(llamacpp:requests_processing) + sum(llamacpp:requests_deferred)",
        false,
    ),
];

impl Preset {
    /// All presets.
    #[cfg(test)]
    pub(super) const ALL: [Preset; 7] = [
        Preset::NodeExporter,
        Preset::Vllm,
        Preset::Sglang,
        Preset::TrtllmServe,
        Preset::Triton,
        Preset::Tgi,
        Preset::LlamaCpp,
    ];

    /// Lists the loads, with the expressions as text.
    fn list_loads(self) -> &'static [PresetLoad] {
        match self {
            Preset::NodeExporter => NODE_EXPORTER,
            Preset::Vllm => VLLM,
            Preset::Sglang => SGLANG,
            Preset::TrtllmServe => TRTLLM_SERVE,
            Preset::Triton => TRITON,
            Preset::Tgi => TGI,
            Preset::LlamaCpp => LLAMA_CPP,
        }
    }

    /// Loads of the preset.
    pub(super) fn loads(self) -> Vec<MetricLoad> {
        let load = |&(load, text, optional): &PresetLoad| {
            let expression = Expression::parse(text).ok()?;
            Some(MetricLoad {
                load,
                expression,
                optional,
            })
        };
        self.list_loads().iter().filter_map(load).collect()
    }

    /// Usual URL of the metrics. Exporters of machines have none, because their port is not that of a member.
    pub(super) fn default_url(self) -> Option<&'static str> {
        match self {
            Preset::NodeExporter => None,
            Preset::Vllm | Preset::Sglang | Preset::Tgi | Preset::LlamaCpp => {
                Some("http://{host}:{port}/metrics")
            }
            Preset::TrtllmServe => Some("http://{host}:{port}/prometheus/metrics"),
            Preset::Triton => Some("http://{host}:8002/metrics"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_whole() {
        for preset in Preset::ALL {
            assert_eq!(
                preset.loads().len(),
                preset.list_loads().len(),
                "{preset:?}"
            );
        }
    }
}
