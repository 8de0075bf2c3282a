"""The command ``graphlearn-dist``."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import os
import platform
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from .config import DEFAULT_SSH, LaunchContext, job_token, metrics_environ, parse_address, trace_environ
from .errors import GraphLearnError, InvalidArgumentError, LaunchError, PeerLostError

if TYPE_CHECKING:
    from .cluster import Host
    from .inference import InferenceOptions, Results
    from .utils.progress import StageProgress
    from .utils.system.job_file import JobAddress


def _launch(args: argparse.Namespace) -> int:
    from .cluster import LaunchPlan, launch
    from .cluster.jobs.checks import misplaced_options
    from .telemetry.trace import clear_parts

    environ = metrics_environ(args.metrics) if args.metrics else {}
    if args.trace_batches and not args.trace:
        raise InvalidArgumentError("--trace-batches: expected --trace FILE with it, got none")
    if args.trace:
        environ |= trace_environ(_trace_folder(args.trace), args.trace_batches)
    plan = LaunchPlan(
        script=args.script,
        script_args=args.script_args,
        is_module=args.module,
        data=args.data,
        num_servers=args.servers,
        num_trainers=args.trainers,
        backend=args.on,
        hosts=_hosts(args),
        ssh=args.ssh,
        port=args.port,
        port_range=args.port_range,
        log_dir=args.log_dir,
        job_file=args.job_file,
        server_script=args.server_script,
        env=environ | dict(args.env),
        trainer_gpus=args.trainer_gpus,
        max_restarts=args.max_restarts,
        heartbeat_timeout_s=args.heartbeat_timeout,
        interpreter_timeout_s=args.interpreter_timeout,
        launcher_timeout_s=args.launcher_timeout,
    )
    for option in misplaced_options(plan, args.options):
        note = f"{option} stands after {args.script} and is the script's; the launcher's options stand before it"
        print(f"graphlearn-dist: {note}", file=sys.stderr)
    if not args.trace:
        return launch(plan)
    clear_parts(_trace_folder(args.trace))
    try:
        return launch(plan)
    finally:  # that of a job that failed, too; whose own error is the one to be told
        try:
            _show_trace(_trace_folder(args.trace), args.trace)
        except (GraphLearnError, OSError) as error:
            print(f"graphlearn-dist: {error}", file=sys.stderr)


def _trace_folder(path: str) -> str:
    """Where the processes of a job write what becomes a timeline at ``path``."""
    return os.path.abspath(path) + ".parts"


def _trace(args: argparse.Namespace) -> int:
    _show_trace(args.path, args.out)
    return 0


def _show_trace(path: str, out: str | None) -> None:
    """What a job's batches were waited for; ``out``: where the timeline of a folder of parts is written."""
    from .telemetry.timeline import critical_path, read_trace, write_timeline

    processes = read_trace(path)
    if out is not None:
        write_timeline(processes, out)
        print(f"{out}: open it at https://ui.perfetto.dev")
    print(critical_path(processes))


def _hosts(args: argparse.Namespace) -> Sequence[Host]:
    from .cluster import read_hosts
    from .cluster.jobs.slurm import slurm_hosts

    if args.hosts:
        return read_hosts(args.hosts)
    return slurm_hosts() if args.on == "ssh" else ()


def _serve(args: argparse.Namespace) -> int:
    context = _serve_context(args)
    _log_to_stderr()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _exit_cleanly)
    from .distributed import DistDataset, init_server, wait_and_shutdown_server

    dataset = DistDataset()
    dataset.load(args.data, context.rank)
    init_server(
        num_servers=context.num_servers,
        num_clients=context.num_clients,
        server_rank=context.rank,
        dataset=dataset,
        master_addr=context.master_addr,
        master_port=context.master_port,
    )
    wait_and_shutdown_server()
    return 0


def _job_address(text: str) -> JobAddress:
    from .utils.system.job_file import JobAddress, read_job_file

    if os.path.exists(text) or not text.rpartition(":")[2].isdecimal():
        return read_job_file(text)
    return JobAddress(*parse_address(text, "JOB"), job_token())


def _status(args: argparse.Namespace) -> int:
    from .distributed.session.job_status import observe

    with observe(_job_address(args.job), timeout_s=args.timeout) as observer:
        print(observer.look().describe())
    return 0


def _top(args: argparse.Namespace) -> int:
    from .distributed.session.job_status import observe

    clear = "" if args.plain or not sys.stdout.isatty() else "\x1b[H\x1b[J"
    # Ctrl-C, and a reader such as `head` that has seen enough, are the ways in which this ends.
    with (
        contextlib.suppress(KeyboardInterrupt, BrokenPipeError),
        observe(_job_address(args.job), timeout_s=args.timeout) as observer,
    ):
        before = observer.look()
        for _ in itertools.count() if args.count is None else range(args.count):
            time.sleep(args.every)
            try:
                now = observer.look()
            except PeerLostError as error:
                raise LaunchError(f"the job has ended, or nobody can be asked for it: {error}") from error
            table = f"{time.strftime('%H:%M:%S')}\n{now.describe(before)}"
            print(f"{clear}{_fitted(table)}" if clear else table, flush=True)
            before = now
    return 0


def _fitted(table: str) -> str:
    """Lines that are longer than the terminal is wide go on further to the right, below."""
    width = shutil.get_terminal_size().columns
    return "\n".join(
        "\n".join(textwrap.wrap(line, max(width, 40), subsequent_indent=" " * 8)) for line in table.splitlines()
    )


def _log_to_stderr() -> None:
    """Has what the package logs written, with the time, to where errors go."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger(__package__)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _serve_context(args: argparse.Namespace) -> LaunchContext:
    if "GLD_ROLE" in os.environ:
        return LaunchContext.from_environ()
    if args.rank is None or args.port is None:
        raise InvalidArgumentError("serve: expected --rank and --port where `graphlearn-dist launch` did not start it")
    return LaunchContext("server", args.rank, args.servers, args.clients, args.master, args.port)


def _exit_cleanly(signum: int, frame: FrameType | None) -> NoReturn:
    # Unwinds the stack, so that whoever opened something closes it.
    raise SystemExit(0)


def _partition(args: argparse.Namespace) -> int:
    from . import partition

    began = time.monotonic()
    directory = partition.partition_file(
        args.data, args.out, num_parts=args.parts, kind=args.by, edge_dir=args.edge_dir, seed=args.seed
    )
    _show_quality(directory, began)
    return 0


def _repartition(args: argparse.Namespace) -> int:
    from . import partition

    began = time.monotonic()
    done = partition.repartition(args.directory, args.out, num_parts=args.parts, by=args.by, seed=args.seed)
    print(done)
    _show_quality(done.path, began)
    return 0


def _show_quality(directory: Path, began: float) -> None:
    from . import partition

    took_s = time.monotonic() - began
    print(f"{directory}: {took_s:.1f} s\n{partition.partition_quality(directory)}")


def _build(args: argparse.Namespace) -> int:
    from .tables import build

    began = time.monotonic()
    try:
        directory = build(
            args.config,
            args.out,
            num_parts=args.parts,
            memory=args.memory,
            resume=args.resume,
            kind=args.by,
            edge_dir=args.edge_dir,
            seed=args.seed,
            num_threads=args.threads,
            progress=None if args.quiet else _show_progress,
        )
    except KeyboardInterrupt:
        print("graphlearn-dist: interrupted; --resume goes on with the last finished stage", file=sys.stderr)
        return 130  # as a shell says it
    if not args.quiet:
        _show_quality(directory, began)
    return 0


def _infer(args: argparse.Namespace) -> int:
    import torch

    from .core import return_large_blocks
    from .distributed import ServedDataset, init_client, shutdown_client
    from .inference import InferenceOptions
    from .inference.model_file import load_model
    from .utils.units import parse_size

    options = InferenceOptions(
        fanout=args.fanout,
        weights=args.weights,
        block_size=args.block_size,
        num_threads=args.threads,
        dtype=getattr(torch, args.dtype),
        node_types=tuple(args.node_type) or None,
        seed=args.seed,
        format=args.format,
        file_bytes=parse_size(args.file_size, name="file-size"),
        together=args.together,
        id_maps=args.data,
        resume=args.resume,
        reconnect_timeout=args.reconnect_timeout,
    )
    if args.pairs and not os.path.isfile(args.pairs):  # seen before the work of hours
        raise InvalidArgumentError(f"--pairs: expected a file, found none at {args.pairs}")
    return_large_blocks()  # those of a block of nodes go with it
    model = load_model(args.model, args.checkpoint)
    if not args.together:
        _infer_rows(args, model, options, args.data)
        return 0
    job = LaunchContext.from_environ()
    init_client(job.num_servers, job.num_clients, job.rank, job.master_addr, job.master_port)
    try:
        _infer_rows(args, model, options, ServedDataset.connect(), is_first=job.rank == 0)
    finally:
        shutdown_client()
    return 0


def _infer_rows(
    args: argparse.Namespace, model: Any, options: InferenceOptions, data: Any, *, is_first: bool = True
) -> None:
    """The rows of all nodes by ``infer``; the first one of several processes tells of it, and scores pairs."""
    from .distributed import DistEmbedding
    from .inference import infer

    learned = [DistEmbedding.from_checkpoint(directory) for directory in args.embeddings]
    embeddings = {each.settings.node_type: each for each in learned} or None
    if len(learned) != len(embeddings or ()):
        raise InvalidArgumentError(
            f"--embeddings: expected one checkpoint for each node type, got {', '.join(args.embeddings)}"
        )
    results = infer(
        model,
        data,
        args.out,
        options=options,
        embeddings=embeddings,
        progress=_show_progress if is_first and not args.quiet else None,
    )
    if args.pairs and is_first:
        _score_pairs(args, results)


def _score_pairs(args: argparse.Namespace, results: Results) -> None:
    import numpy as np

    from .inference.pair_tables import score_pair_table
    from .inference.pairs import load_pairs, score_pairs

    types = tuple(args.pair_types or (None, None))
    if args.pairs.endswith(".npy"):
        scores = score_pairs(results, load_pairs(args.pairs), node_types=types)
        np.save(os.path.join(args.out, "pair_scores.npy"), scores.numpy())
        return
    out = os.path.join(args.out, "pair_scores.parquet")
    score_pair_table(results, args.pairs, out, directory=args.data, node_types=types, columns=args.pair_columns)


def _show_progress(progress: StageProgress) -> None:
    on_terminal = sys.stderr.isatty()
    if progress.finished or on_terminal:
        end = "\n" if progress.finished else "\r"
        print(f"{progress!s:<100}" if on_terminal else str(progress), end=end, file=sys.stderr, flush=True)


def _verify(args: argparse.Namespace) -> int:
    from . import partition

    print(partition.verify(args.directory))
    return 0


def _info(args: argparse.Namespace) -> int:
    if args.directory is not None:
        from . import partition

        print(partition.describe(args.directory))
        return 0
    import torch

    from . import _C

    cuda = f"built with CUDA {_C.cuda_build_version()}" if _C.cuda_is_built() else "built without CUDA"
    print(f"graphlearn_dist {_C.__version__} ({cuda}; {_C.cuda_device_count()} usable devices)")
    print(f"torch           {torch.__version__} (CUDA {torch.version.cuda or 'none'})")
    print(f"python          {platform.python_version()} on {platform.platform()}")
    print(f"cores           {len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")
    return 0


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _port_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected LOW-HIGH, got {text!r}")
    return int(low), int(high)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, got {text!r}")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def _index_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise argparse.ArgumentTypeError(f"expected FIRST-LAST, got {text!r}")
    return int(low), int(high)


def _add_launch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="partition directory for the servers")
    parser.add_argument("--servers", type=int, default=1, metavar="N", help="servers to start (default 1)")
    parser.add_argument("--trainers", type=int, default=1, metavar="N", help="trainers to start (default 1)")
    parser.add_argument("--on", choices=("local", "ssh", "ray"), default="local", help="where they run (default local)")
    parser.add_argument("--hosts", metavar="FILE", help="for ssh: one host to a line, 'slots=N' (default: Slurm's)")
    parser.add_argument("--ssh", default=DEFAULT_SSH, metavar="COMMAND", help="ssh with its options")
    parser.add_argument("--port", type=int, metavar="N", help="for ssh: the registry's, on the first host (29400)")
    parser.add_argument(
        "--port-range", type=_port_range, metavar="LOW-HIGH",
        help="ports that servers and trainers listen on, the registry's first (for firewalls)",
    )  # fmt: skip
    parser.add_argument("--trainer-gpus", type=float, default=0, metavar="N", help="for ray: GPUs of each trainer")
    parser.add_argument("--log-dir", metavar="DIR", help="write each process's output to a file there as well")
    parser.add_argument("--job-file", metavar="FILE", help="write there how `status` and `top` reach the job")
    parser.add_argument("--server-script", metavar="FILE", help="run this as a server instead of `serve`")
    parser.add_argument(
        "--max-restarts", type=int, default=3, metavar="N", help="restarts of each killed server, an hour (default 3)"
    )
    parser.add_argument(
        "--heartbeat-timeout", type=float, default=3.0, metavar="S",
        help="kill a server that gives no sign of life for so long, and start it again; 0: never (default 3)",
    )  # fmt: skip
    parser.add_argument(
        "--interpreter-timeout", type=float, default=30.0, metavar="S",
        help="so too one whose interpreter runs nothing for so long; 0: never (default 30)",
    )  # fmt: skip
    parser.add_argument(
        "--launcher-timeout", type=float, default=30.0, metavar="S",
        help="for ssh: a host is lost that is silent for so long, and ends what it runs; 0: never (default 30)",
    )  # fmt: skip
    parser.add_argument("--trace", metavar="FILE", help="write a timeline of all, and say what was waited for")
    parser.add_argument(
        "--trace-batches", type=_index_range, metavar="FIRST-LAST", help="of the batches of these indices alone"
    )
    parser.add_argument(
        "--metrics", metavar="[HOST:]PORT",
        help="every process shows what it counts there, for Prometheus, or at the next free port",
    )  # fmt: skip
    parser.add_argument("--env", type=_assignment, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as of python -m")
    parser.add_argument("script", help="the training script")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="its arguments", metavar="...")
    options = [option for action in parser._actions for option in action.option_strings]
    parser.set_defaults(run=_launch, options=options)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="DIR", help="partition directory")
    parser.add_argument("--rank", type=int, help="rank, and partition (the launcher sets it and all that follow)")
    parser.add_argument("--servers", type=int, default=1, metavar="N", help="servers in the job (default 1)")
    parser.add_argument("--clients", type=int, default=0, metavar="N", help="clients; 0: any number (default)")
    parser.add_argument("--master", default="127.0.0.1", metavar="HOST", help="host of server 0")
    parser.add_argument("--port", type=int, help="port of the registry")
    parser.set_defaults(run=_serve)


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="FILE", help="the graph, as .npz")
    parser.add_argument("--out", required=True, metavar="DIR", help="partition directory to make")
    parser.add_argument("--parts", required=True, type=int, metavar="N", help="number of partitions")
    _add_assignment(parser)
    parser.set_defaults(run=_partition)


def _add_repartition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="partition directory")
    parser.add_argument("--parts", required=True, type=int, metavar="N", help="number of partitions")
    parser.add_argument("--out", required=True, metavar="DIR", help="partition directory to make")
    parser.add_argument("--by", choices=("kaminpar", "ldg"), help="finds the order of a data set that has none")
    parser.add_argument("--seed", type=int, default=0, help="of that (default 0)")
    parser.set_defaults(run=_repartition)


def _add_assignment(parser: argparse.ArgumentParser) -> None:
    kinds = ("random", "range", "kaminpar", "ldg")
    parser.add_argument(
        "--by", "--kind", choices=kinds, default="random", help="who owns a node (default random; docs/locality.md)"
    )
    parser.add_argument("--edge-dir", choices=("in", "out"), default="in", help="neighbors to keep (default in)")
    parser.add_argument("--seed", type=int, default=0, help="of random partitions, and of orders (default 0)")


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="YAML or JSON: tables of nodes and edges (docs/tables.md)")
    parser.add_argument("--out", required=True, metavar="DIR", help="partition directory to make")
    parser.add_argument("--parts", required=True, type=int, metavar="N", help="number of partitions")
    parser.add_argument("--memory", default="4GB", metavar="SIZE", help="private memory to keep to (default 4GB)")
    parser.add_argument("--resume", action="store_true", help="go on with the last finished stage of a build")
    parser.add_argument("--threads", type=int, metavar="N", help="default: as many as cores; not part of the result")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    _add_assignment(parser)
    parser.set_defaults(run=_build)


def _add_infer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="DIR", help="partition directory")
    parser.add_argument("--model", required=True, metavar="FILE:FUNCTION", help="function that makes the model")
    parser.add_argument("--checkpoint", metavar="FILE", help="its parameters, as torch.save wrote them")
    parser.add_argument(
        "--embeddings", action="append", default=[], metavar="DIR", help="checkpoint of learned rows of a node type"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="directory of the rows, new or empty")
    parser.add_argument("--fanout", type=int, default=-1, metavar="N", help="neighbors of each node (default: all)")
    parser.add_argument("--weights", action="store_true", help="hand the weights of edges to the model")
    parser.add_argument("--node-type", action="append", default=[], metavar="T", help="rows of these types only")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="of the stored rows")
    parser.add_argument("--format", choices=("npy", "parquet"), default="npy", help="parquet has the original ids")
    parser.add_argument("--file-size", default="1GB", metavar="SIZE", help="rows of one file at most (default 1GB)")
    parser.add_argument("--block-size", type=int, default=16384, metavar="N", help="the most nodes computed at once")
    parser.add_argument("--threads", type=int, metavar="N", help="default: as many as cores; not part of the result")
    parser.add_argument("--seed", type=int, default=0, help="of the draws of --fanout (default 0)")
    parser.add_argument("--resume", action="store_true", help="go on with the last finished block")
    parser.add_argument(
        "--reconnect-timeout", type=float, default=60.0, metavar="S",
        help="how long a server that is gone may take to come back (default 60)",
    )  # fmt: skip
    parser.add_argument(
        "--together", action="store_true",
        help="this is one of the trainers of `launch -m graphlearn_dist infer`, which compute the nodes of the servers",
    )  # fmt: skip
    parser.add_argument(
        "--pairs",
        metavar="FILE",
        help="score these pairs, too: .parquet or .csv of original ids, or .npy [2, n]",
    )
    parser.add_argument("--pair-columns", nargs=2, metavar="C", help="columns of the ids (default: the first two)")
    parser.add_argument("--pair-types", nargs=2, metavar="T", help="node types of the pairs' sources and targets")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(run=_infer)


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.set_defaults(run=_status)


def _add_top(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument(
        "--every", type=_seconds, default=2.0, metavar="S", help="seconds between two looks (default 2)"
    )
    parser.add_argument("--count", type=_count, metavar="N", help="end after so many (default: at Ctrl-C)")
    parser.add_argument("--plain", action="store_true", help="print one below the other, as for a log")
    parser.set_defaults(run=_top)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="a --job-file, or [HOST:]PORT of the registry and GLD_TOKEN(_FILE)")
    parser.add_argument("--timeout", type=_seconds, default=10.0, metavar="S", help="for each answer (default 10)")


def _parser() -> argparse.ArgumentParser:
    from ._C import __version__

    parser = argparse.ArgumentParser(prog="graphlearn-dist", description="Distributed graph sampling for GNN training.")
    parser.add_argument("--version", action="version", version=f"graphlearn-dist {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_launch(commands.add_parser("launch", help="start servers and trainers, and follow them to their end"))
    _add_serve(commands.add_parser("serve", help="serve one partition"))
    _add_partition(commands.add_parser("partition", help="split a graph into partitions"))
    _add_build(commands.add_parser("build", help="make partitions of tables, out of core"))
    again = commands.add_parser("repartition", help="change the number of partitions by moving zones of an order")
    _add_repartition(again)
    _add_infer(commands.add_parser("infer", help="compute the rows of all nodes by a trained model, layer by layer"))
    trace = commands.add_parser("trace", help="say what the batches of a traced job were waited for")
    trace.add_argument("path", metavar="PATH", help="a timeline, or the folder of its parts (launch --trace)")
    trace.add_argument("--out", metavar="FILE", help="write a timeline of the parts, for ui.perfetto.dev")
    trace.set_defaults(run=_trace)
    _add_status(commands.add_parser("status", help="show what the processes of a running job are at"))
    _add_top(commands.add_parser("top", help="the same again and again, with rates and what holds the job up"))
    verify = commands.add_parser("verify", help="check a partition directory")
    verify.add_argument("directory", metavar="DIR")
    verify.set_defaults(run=_verify)
    info = commands.add_parser("info", help="show what a partition directory has, or what this build can do")
    info.add_argument("directory", metavar="DIR", nargs="?", help="partition directory")
    info.set_defaults(run=_info)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code. Expected errors are one message on stderr and code 1."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except GraphLearnError as error:
        print(f"graphlearn-dist: {error}", file=sys.stderr)
        return error.code if isinstance(error, LaunchError) else 1
    except KeyboardInterrupt:
        print("graphlearn-dist: interrupted", file=sys.stderr)
        return 130  # as a shell says it
