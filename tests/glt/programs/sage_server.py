"""A server of the server-client mode: holds a partition, and samples for clients."""

import argparse
import os.path as osp

import torch

import graphlearn_dist.glt as glt


def run_server_proc(num_servers, num_clients, server_rank, dataset, master_addr, server_client_port):
    glt.distributed.init_server(
        num_servers=num_servers,
        num_clients=num_clients,
        server_rank=server_rank,
        dataset=dataset,
        master_addr=master_addr,
        master_port=server_client_port,
        num_rpc_threads=16,
        server_group_name="dist-train-supervised-sage-server",
    )
    glt.distributed.wait_and_shutdown_server()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root_dir", type=str)
    parser.add_argument("--num_servers", type=int, default=2)
    parser.add_argument("--num_clients", type=int, default=2)
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("--master_addr", type=str, default="localhost")
    parser.add_argument("--server_client_master_port", type=int)
    args = parser.parse_args()

    dataset = glt.distributed.DistDataset()
    dataset.load(
        root_dir=osp.join(args.root_dir, "partitions"),
        partition_idx=args.node_rank,
        graph_mode="ZERO_COPY",
        whole_node_label_file=osp.join(args.root_dir, "label", "label.pt"),
    )
    mp_context = torch.multiprocessing.get_context("spawn")
    sproc = mp_context.Process(
        target=run_server_proc,
        args=(
            args.num_servers,
            args.num_clients,
            args.node_rank,
            dataset,
            args.master_addr,
            args.server_client_master_port,
        ),
    )
    sproc.start()
    sproc.join()
    raise SystemExit(sproc.exitcode)
