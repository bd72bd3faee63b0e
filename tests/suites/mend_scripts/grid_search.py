"""A grid search of scikit-learn over a classifier of skorch: nine fits and a last one, one after
another."""

from __future__ import annotations

from pathlib import Path

import numpy
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import Tensor, nn
from torch.optim import SGD

from .swap import Swap


class Classifier(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def train(swap: Swap, folder: Path, seed: int) -> list[float]:
    x, y = make_classification(400, 20, n_informative=10, random_state=seed)
    net = NeuralNetClassifier(
        Classifier,
        criterion=nn.CrossEntropyLoss,
        optimizer=swap.of(SGD),
        optimizer__momentum=0.9,
        max_epochs=4,
        batch_size=32,
        verbose=0,
    )
    search = GridSearchCV(net, {"lr": [0.01, 0.03, 0.1]}, cv=3, scoring="accuracy")
    search.fit(x.astype(numpy.float32), y.astype(numpy.int64))
    losses = search.best_estimator_.history[:, "train_loss"]
    return [*search.cv_results_["mean_test_score"], *losses]
