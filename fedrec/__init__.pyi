from fedrec.errors import DataError as DataError
from fedrec.errors import FedRecError as FedRecError
from fedrec.errors import PrivacyError as PrivacyError
from fedrec.errors import RunError as RunError
from fedrec.errors import SettingsError as SettingsError
from fedrec.settings import Scenario as Scenario
from fedrec_simulations.api.callbacks import JsonLines as JsonLines
from fedrec_simulations.api.comparing import compare as compare
from fedrec_simulations.api.curves import PrivacyCurve as PrivacyCurve
from fedrec_simulations.api.curves import privacy_curve as privacy_curve
from fedrec_simulations.api.datasets import Dataset as Dataset
from fedrec_simulations.api.datasets import TestSet as TestSet
from fedrec_simulations.api.datasets import TrainingSet as TrainingSet
from fedrec_simulations.api.estimators import ItemBias as ItemBias
from fedrec_simulations.api.estimators import ItemItem as ItemItem
from fedrec_simulations.api.estimators import MatrixFactorization as MatrixFactorization
from fedrec_simulations.api.estimators import Popularity as Popularity
from fedrec_simulations.api.estimators import Recommender as Recommender
from fedrec_simulations.api.estimators import load as load
from fedrec_simulations.api.evaluating import Evaluation as Evaluation
from fedrec_simulations.api.evaluating import evaluate as evaluate
from fedrec_simulations.api.promises import PrivacyGuarantee as PrivacyGuarantee
from fedrec_simulations.api.running import Simulation as Simulation
from fedrec_simulations.api.running import scenarios as scenarios
from fedrec_simulations.api.running import simulate as simulate

__version__: str
