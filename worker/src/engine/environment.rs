//! Owns: which of the agent's environment variables an engine gets: those that configure engines and their libraries.
//!
//! Invariant: a variable that is not listed is withheld. So is one that is listed by prefix and whose name marks a
//! secret. Variables that the operator names in `pass_env` are passed on. Those in the engine's own `env` are always
//! set.
//! Absent: files. An engine runs as the agent's user and can read what that user can.

use std::ffi::OsString;

/// docs/vllm.md lists these for operators.
const NAMES: &[&str] = &[
    // The system.
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "HOSTNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TERM",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    // The network.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    // Compilers: kernels are built at run time.
    "CC",
    "CXX",
    "CUDACXX",
    "CFLAGS",
    "CXXFLAGS",
    "LDFLAGS",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "MAX_JOBS",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    // Models.
    "HF_HOME",
    "HF_ENDPOINT",
    "HF_ASSETS_CACHE",
    "HF_MODULES_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HUGGINGFACE_ASSETS_CACHE",
    "MODELSCOPE_CACHE",
    "ATEN_CPU_CAPABILITY",
    "DO_NOT_TRACK",
    "NO_COLOR",
    "LLVM_PROFILE_FILE",
    "ROLLOUT_LOG",
    // Not secrets, despite their names: two numbers of tokens, and a switch.
    "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD",
    "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
];
const PREFIXES: &[&str] = &[
    "LC_",
    "XDG_",
    "PYTHON",
    "RUST_",
    "MALLOC_",
    // Devices and their interconnects.
    "CUDA_",
    "CUDNN_",
    "CUBLAS_",
    "CUBLASLT_",
    "CUFILE_",
    "CUTLASS_",
    "CUTE_DSL_",
    "NVCC_",
    "NVIDIA_",
    "NVTE_",
    "NVSHMEM_",
    "NCCL_",
    "RCCL_",
    "ROCM_",
    "ROCR_",
    "HIP_",
    "HSA_",
    "AMD_",
    "GPU_",
    "MIOPEN_",
    "HIPBLASLT_",
    "ROCBLAS_",
    "AITER_",
    "NEURON_",
    "TPU_",
    "LIBTPU_",
    "JAX_",
    "PJRT_",
    "XLA_",
    "ONEAPI_",
    "ZE_",
    "SYCL_",
    "XPU_",
    "CCL_",
    "PT_HPU_",
    "HABANA_",
    "ASCEND_",
    "HCCL_",
    "GLOO_",
    "UCX_",
    "FI_",
    "RDMAV_",
    // Libraries.
    "VLLM_",
    "LMCACHE_",
    "MOONCAKE_",
    "NIXL_",
    "RUNAI_STREAMER_",
    "FLASHINFER_",
    "FLASH_ATTENTION_",
    "FLA_",
    "DG_",
    "QUACK_",
    "TILELANG_",
    "TVM_",
    "TRITON_",
    "TORCH",
    "PYTORCH_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "TIKTOKEN_",
    "OUTLINES_",
    "SAFETENSORS_",
    "HF_HUB_",
    "HF_XET_",
    "HF_DATASETS_",
    "RAY_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "NUMBA_",
];
/// If a name is listed only by prefix, one of these between its underscores marks a secret: VLLM_API_KEY,
/// RAY_AUTH_TOKEN.
const SECRETS: [&str; 6] = ["TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL", "CREDENTIALS"];

/// Which of these variables an engine does not get.
pub(super) fn withheld(
    names: impl IntoIterator<Item = OsString>,
    pass_env: &[String],
) -> Vec<OsString> {
    let gets = |name: &OsString| {
        let Some(name) = name.to_str() else { return false };
        is_an_engines(name) || pass_env.iter().any(|passed| is_meant(passed, name))
    };
    names.into_iter().filter(|name| !gets(name)).collect()
}

fn is_an_engines(name: &str) -> bool {
    let begins = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let secret = name.split('_').any(|word| SECRETS.contains(&word));
    NAMES.contains(&name) || (begins && !secret)
}

/// Whether an entry of `pass_env` matches this name: it is the name, or a prefix of it and a `*`.
fn is_meant(passed: &str, name: &str) -> bool {
    match passed.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == passed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str], pass_env: &[&str]) -> Vec<OsString> {
        let pass_env: Vec<String> = pass_env.iter().map(|&name| name.to_owned()).collect();
        withheld(names.iter().map(OsString::from), &pass_env)
    }

    #[test]
    fn an_engine_gets_what_is_listed_and_what_the_operator_passes_on() {
        let gets = ["PATH", "HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "ROLLOUT_LOG"];
        assert!(of(&gets, &[]).is_empty());
        assert!(of(&["TOKENIZERS_PARALLELISM", "LC_ALL", "https_proxy"], &[]).is_empty());
        let not = ["AWS_SECRET_ACCESS_KEY", "AWS_REGION", "HF_TOKEN", "OPENAI_API_KEY", "PATHS"];
        assert_eq!(of(&not, &[]), not.map(OsString::from));
        assert_eq!(of(&not, &["AWS_*", "HF_TOKEN", "OPENAI", ""]), ["OPENAI_API_KEY", "PATHS"]);
        assert!(of(&not, &["*"]).is_empty());
    }

    #[test]
    fn a_secret_is_withheld_whatever_its_name_begins_with() {
        let secrets = ["VLLM_API_KEY", "RAY_AUTH_TOKEN", "HF_HUB_TOKEN", "NVIDIA_PASSWORD"];
        assert_eq!(of(&secrets, &[]), secrets.map(OsString::from));
        assert_eq!(of(&secrets, &["VLLM_API_KEY"]).len(), 3);
    }

    #[test]
    fn settings_of_engines_and_their_libraries_are_no_secrets() {
        let settings = [
            "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD",
            "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN",
            "HUGGINGFACE_HUB_CACHE",
            "TIKTOKEN_ENCODINGS_BASE",
            "CUBLASLT_WORKSPACE_SIZE",
            "NVCC_THREADS",
            "MAX_JOBS",
            "GPU_MAX_HW_QUEUES",
            "AITER_JIT_DIR",
            "FLASH_ATTENTION_TRITON_AMD_ENABLE",
            "PT_HPU_LAZY_MODE",
            "MOONCAKE_CONFIG_PATH",
        ];
        assert!(of(&settings, &[]).is_empty(), "{:?}", of(&settings, &[]));
        // The variable that names a model loader's store comes with the store's keys.
        assert_eq!(of(&["S3_ENDPOINT_URL", "S3_ACCESS_KEY_ID"], &["S3_*"]).len(), 0);
        assert_eq!(of(&["S3_ENDPOINT_URL", "S3_ACCESS_KEY_ID"], &[]).len(), 2);
    }

    #[test]
    fn the_documentation_lists_what_an_engine_gets() {
        let page = include_str!("../../../docs/vllm.md");
        for name in NAMES {
            assert!(page.contains(&format!("`{name}`")), "docs/vllm.md does not list {name}");
        }
        for prefix in PREFIXES {
            assert!(page.contains(&format!("`{prefix}*`")), "docs/vllm.md does not list {prefix}*");
        }
    }
}
