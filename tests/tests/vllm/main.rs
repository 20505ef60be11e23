//! vLLM itself, on a CPU, behind three members and their workers. `make test-vllm` runs this: it makes the
//! environment, and fails if it is not available.

mod api_server;
mod batch_format;
mod continuous_batching;
mod deaths;
mod dry_run;
mod inputs;
mod offers;
mod rows;
mod setup;
