"""Each sentence of docs/ray.md is shown by a program of docs/ray_programs.md or by a test, or promises nothing."""

from __future__ import annotations

import re

from tests.support.document_programs import ROOT, document

# Sentences, by how they begin: those that tests show, as they need several machines, a lost one or another program, and
# those that promise nothing that a program could show.
SHOWN_BY = {
    "cluster/groups/test_ray_documents.py": {
        "Where they run is": "test_programs_print_what_they_say",
        "Everything below": "test_programs_print_what_they_say",
        "`graphlearn_dist.cluster` runs": "test_programs_print_what_they_say",
        "The same command as": "test_the_command_for_a_job",
        "It connects to Ray as": "test_the_command_for_a_job",
        "[ray_programs.md]": "test_programs_print_what_they_say",
    },
    "unit/cluster/test_health.py": {
        "The names are also": "test_ray_is_imported_only_when_asked_for",
        "Nothing imports it": "test_ray_is_imported_only_when_asked_for",
    },
    "cluster/groups/test_own_ray.py": {
        '| `"auto"`': "test_nothing_is_left_of_it",
        '| `"ray"`': "test_nothing_is_left_of_it",
        "Restarts are the driver": "test_nothing_is_left_of_it",
        '`backend="local"`, or': "test_nothing_is_left_of_it",
    },
    "cluster/groups/test_actors.py": {
        '| `"local"`': "test_a_killed_process_fails_all_that_wait",
        "Variables are set before": "test_calls",
        "A worker that dies": "test_a_killed_process_fails_all_that_wait",
    },
    "cluster/groups/test_worker_groups.py": {
        "`RayVirtualCluster([2, 2])` has": "test_cluster",
        "`ACTOR_ENVIRONMENT_REGISTRY": "test_workers_under_an_interpreter_of_their_own",
        'With `"uv run': "test_workers_in_an_environment_made_for_them",
        "| `run_single_worker_single_data`": "test_a_group_of_a_class_waits",
        "Results of generators": "test_generators",
        "A decorator's": "test_what_a_worker_is_told_last_holds",
    },
    "cluster/groups/test_simulated_nodes.py": {
        "The bundles of one always": "test_one_machine_for_a_node_and_different_ones_for_different_nodes",
        "`unified=True` makes one": "test_a_unified_group_over_all_machines",
        "What fits but is not free": "test_workers_of_a_lost_node_go_on_elsewhere",
        "A node that is lost": "test_workers_of_a_lost_node_go_on_elsewhere",
        "**Looking.**": "test_one_machine_for_a_node_and_different_ones_for_different_nodes",
    },
    "cluster/groups/test_virtual_cluster.py": {
        "Its placement groups have": "test_what_was_held_is_given_back_where_a_name_is_taken",
    },
    "unit/cluster/test_worker_layout.py": {
        "`gpu_ids` fixes": "test_gpu_ids",
        "`SLURM_*` variables": "test_secrets_and_schedulers_stay_with_the_driver",
        "In a unified placement": "test_environment_of_ranks",
    },
    "unit/cluster/test_virtual_environments.py": {
        "It is made once, under": "test_many_at_once_build_one",
        "A virtual environment is": "test_rebuilding",
    },
    "cluster/groups/test_native_ray.py": {
        "The handles of local": "test_what_is_local_says_that_it_cannot_be_sent",
        "No initializer process": "test_the_builder_takes_rays_placement_groups",
    },
    "unit/cluster/test_supervisor.py": {
        "One that is late when": "test_a_process_that_is_late_is_one_more_death",
        "With `monitor_memory=True`": "test_memory_is_warned_of_once",
    },
    "cluster/groups/test_group_failures.py": {
        "`stuck_timeout_s` has": "test_a_frozen_worker_is_condemned_and_restarted",
    },
    "cluster/groups/test_ray_job.py": {
        "Each process is at": "test_a_killed_server_and_a_lost_machine_change_no_batch",
        "The actors carry": "test_a_process_at_the_end_of_an_actor",
        "A server that is killed": "test_a_killed_server_and_a_lost_machine_change_no_batch",
        "Trainers go on": "test_a_killed_server_and_a_lost_machine_change_no_batch",
        "The job ends with it": "test_a_trainer_that_fails_ends_the_job",
        "The job's token": "test_a_process_at_the_end_of_an_actor",
    },
    "unit/cluster/test_job_placement.py": {
        "A server runs on": "test_servers_are_where_their_partition_is_and_spread",
        "`--trainer-gpus 1` has": "test_trainers_that_do_not_fit",
        "Machines without": "test_the_largest_machines_come_first_and_those_without_processors_not_at_all",
    },
    "cluster/test_launcher.py": {
        "`--max-restarts` bounds": "test_a_server_that_is_killed_too_often_is_given_up",
        "Each process's lines": "test_log_files_hold_the_lines_without_prefix",
    },
    "unit/test_docs.py": {
        "**KubeRay.**": "test_the_manifest_for_kuberay_describes_one_job",
    },
    "unit/cluster/test_worker_builder.py": {
        "**Profiling.**": "test_profiled_workers",
    },
    "unit/cluster/test_call_plan.py": {
        "Data of the wrong": "test_wrong_axes_and_data_that_does_not_fit_them",
    },
    "unit/cluster/test_batched_data_dict.py": {
        "`first_fit_shuffle` of": "test_the_shuffle_of_first_fit_is_drawn_from_its_seed",
    },
}
NOTHING_TO_SHOW = {
    "`pip install": "it is about what was tried",
    "| `RayVirtualCluster(backend=…)`": "the head of a table",
    "| call |": "the head of a table",
    "Keep samples off": "advice",
    "They are pickled": "the reason of the advice",
    "Ray notices after": "Ray's own settings",
    "Trainers wait for": "advice on a setting that docs/failures.md describes",
    "The registry runs": "where a part of the launcher is",
    "`python examples/demo.py": "the demo, which runs with --on local in CI and takes a minute",
    "**A laptop.**": "an introduction",
    "**Four machines.**": "an introduction to commands for four machines",
    "Ray asks for": "Ray's own settings",
    "Not tried": "what was not tried",
    "**Slurm.**": "Ray's own command, not tried under Slurm",
    "With `ray[default]`": "Ray's dashboard, which CI does not install",
    "`train-look-…`": "explains a listing",
    "The dashboard's pages": "Ray's dashboard, which CI does not install",
    "`/api/v0/actors`": "Ray's dashboard, which CI does not install",
    "**Ray's own settings": "Ray's own settings",
    "`RAY_worker_niceness=0`": "Ray's own settings",
    "What Ray sets of": "benchmarks/bench_ray.py measures it",
    "There is no `segment_size`": "something that is not there",
    "`BatchedDataDict` has no": "something that is not there",
}


def plain(text: str) -> str:
    return " ".join(text.split())


def sentences(text: str) -> list[str]:
    """The sentences and table rows of a document, without its blocks of code and its headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = []
    for block in re.split(r"\n\s*\n|\n(?=- )|\n(?=\|)|\n(?=#)", text):
        paragraph = plain(block)
        if re.match(r"#|[|\s:-]+$", paragraph) or not paragraph:
            continue
        row = paragraph.startswith("|")
        found += [paragraph] if row else re.split(r"(?<=[.:])\s+(?=[A-Z`*\[])", paragraph.removeprefix("- "))
    return found


def quotations(text: str) -> list[str]:
    """What the programs stand for: each paragraph of ``>`` lines."""
    return [
        plain(found.replace("\n>", "\n").removeprefix(">")) for found in re.findall(r"(?:^>.*\n)+", text, re.MULTILINE)
    ]


def test_every_sentence_is_shown() -> None:
    quoted = quotations(document("ray_programs.md"))
    known = {*(start for shown in SHOWN_BY.values() for start in shown), *NOTHING_TO_SHOW}
    used: set[str] = set()
    missing = []
    for sentence in sentences(document("ray.md")):
        starts = [start for start in known if sentence.startswith(start)]
        used.update(starts)
        if not starts and not any(sentence in quotation for quotation in quoted):
            missing.append(sentence)
    assert missing == []
    assert sorted(known - used) == []


def test_quotations_stand_in_the_document() -> None:
    stands = plain(document("ray.md"))
    assert [quotation for quotation in quotations(document("ray_programs.md")) if quotation not in stands] == []


def test_what_shows_a_sentence_is_there() -> None:
    for path, shown in SHOWN_BY.items():
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert [name for name in shown.values() if f"def {name}(" not in text] == []
