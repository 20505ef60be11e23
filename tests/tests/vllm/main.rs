//! vLLM itself, on a CPU, behind three members and their workers. `make test-vllm` runs this: it makes the
//! environment, and fails if it is not available.

mod batch_format;
mod deaths;
mod dry_run;
mod feeding;
mod inputs;
mod offers;
mod rows;
mod served;
mod setup;
