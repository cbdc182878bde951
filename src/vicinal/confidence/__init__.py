from vicinal.confidence.conformal import ConformalSets as ConformalSets
from vicinal.confidence.dknn import DeepKNN as DeepKNN
from vicinal.confidence.dknn import DeepKNNPrediction as DeepKNNPrediction
from vicinal.confidence.softmax import TemperatureScaling as TemperatureScaling
from vicinal.confidence.softmax import energy as energy
from vicinal.confidence.softmax import max_softmax as max_softmax
from vicinal.confidence.trust_score import TrustScore as TrustScore
