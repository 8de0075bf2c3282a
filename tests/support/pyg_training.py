"""Programs as PyG's users write them, as text: a test changes the line that imports the loader, and nothing else."""

NODES = """
import torch
import torch.nn.functional as F
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv


class Net(torch.nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(inputs, hidden), SAGEConv(hidden, outputs)])

    def forward(self, x, edge_index):
        x = F.dropout(self.convs[0](x, edge_index).relu(), 0.5, self.training)
        return self.convs[1](x, edge_index)


def train(data, seed, epochs, fanouts, batch_size):
    torch.manual_seed(seed)
    loader = NeighborLoader(
        data, num_neighbors=fanouts, input_nodes=data.train_mask, batch_size=batch_size, shuffle=True, num_workers=0
    )
    model = Net(data.num_features, 32, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(epochs):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
    model.eval()
    test = NeighborLoader(data, num_neighbors=[-1, -1], input_nodes=data.test_mask, batch_size=256)
    found = []
    for batch in test:
        with torch.no_grad():
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
        found.append((out, batch.y[: batch.batch_size]))
    return [torch.cat(parts) for parts in zip(*found)]
"""

TYPED = """
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv, to_hetero


class Net(torch.nn.Module):
    def __init__(self, hidden, outputs):
        super().__init__()
        self.conv1 = SAGEConv((-1, -1), hidden)
        self.conv2 = SAGEConv((-1, -1), outputs)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def train(data, seed, epochs, fanouts, batch_size):
    torch.manual_seed(seed)
    data = T.ToUndirected()(data)
    loader = NeighborLoader(
        data,
        num_neighbors={key: fanouts for key in data.edge_types},
        input_nodes=("paper", data["paper"].train_mask),
        batch_size=batch_size,
        shuffle=True,
    )
    model = to_hetero(Net(32, int(data["paper"].y.max()) + 1), data.metadata())
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(epochs):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            size = batch["paper"].batch_size
            out = model(batch.x_dict, batch.edge_index_dict)["paper"][:size]
            F.cross_entropy(out, batch["paper"].y[:size]).backward()
            optimizer.step()
    model.eval()
    found = []
    seeds = ("paper", data["paper"].test_mask)
    for batch in NeighborLoader(data, num_neighbors=[-1, -1], input_nodes=seeds, batch_size=64):
        size = batch["paper"].batch_size
        with torch.no_grad():
            out = model(batch.x_dict, batch.edge_index_dict)["paper"][:size]
        found.append((out, batch["paper"].y[:size]))
    return [torch.cat(parts) for parts in zip(*found)]
"""

THEIRS = "from torch_geometric.loader import NeighborLoader"
OURS = "from graphlearn_dist.loader import NeighborLoader"
